"""What every Python model needs of Triton's stub: parameters, tensors in, tensors and errors out.

Copied into model repositories as ``trtkit_io.py``. ``triton_python_backend_utils`` exists only in the stub,
and its auto-complete pass lacks most classes: nothing of it is touched at module level.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SPELL_CODE = "trtkit_spell_error_code"
"""Request parameter by which the BLS model asks its children for errors with their code spelled out."""


SETTLE_S = 0.03
"""How old a request must be before it may fail.

An error ends the stream of a client that asked for gRPC errors, and Triton 24.10 crashes as a whole when that
happens while its own thread is still handing the request over.
"""


_YES, _NO = {"true", "1", "yes", "y", "t"}, {"false", "0", "no", "n", "f"}


class Refusal(Exception):
    """A request that cannot be served; ``code`` is a TritonError code or its name."""

    def __init__(self, message: str, code: Any = "INVALID_ARG") -> None:
        super().__init__(message)
        self.code = code


class Settings:
    """The ``parameters`` of config.pbtxt; paths are relative to the model's version directory."""

    def __init__(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._values = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.max_batch_size = int(config["max_batch_size"])
        self._version_dir = Path(args["model_repository"], args["model_version"]).absolute()

    def text(self, key: str, default: str = "") -> str:
        """Return a parameter, ``default`` when it is absent or empty."""
        return self._values.get(key) or default

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a yes-or-no parameter; raises ValueError for any other."""
        value = self.text(key, str(default)).lower()
        if value not in _YES | _NO:
            raise ValueError(f"config.pbtxt: parameter {key} is {value!r}, and has to be true or false")
        return value in _YES

    def number(self, key: str, default: int) -> int:
        """Return a whole number, 0 or above; raises ValueError for anything else."""
        return _number(key, self.text(key, str(default)))

    def numbers(self, key: str) -> list[int]:
        """Return whole numbers between commas; raises ValueError for anything else."""
        values = self.text(key)
        return [_number(key, value.strip()) for value in values.split(",")] if values else []

    def seconds(self, key: str, default_ms: int) -> float:
        """Return a parameter in whole milliseconds as seconds; raises ValueError for anything else and for 0."""
        period_ms = self.number(key, default_ms)
        if period_ms < 1:
            raise ValueError(f"config.pbtxt: parameter {key} is 0, and has to be 1 or above")
        return period_ms / 1e3

    def path(self, key: str) -> Path:
        """Return a path parameter, resolved."""
        return self._version_dir / self.text(key)


def _number(key: str, text: str) -> int:
    """Read a whole number as the other back ends do: int() takes '1_000' and digits of other scripts too."""
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"config.pbtxt: parameter {key} is {text!r}, and has to be a whole number")
    return int(text)


def _stub() -> Any:
    import triton_python_backend_utils

    return triton_python_backend_utils


def array(request: Any, name: str) -> np.ndarray[Any, Any] | None:
    """Return an input as an array, None when the request lacks it."""
    tensor = _stub().get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def required(request: Any, name: str) -> np.ndarray[Any, Any]:
    """Return an input as an array; raises Refusal when the request lacks it, which Triton 24.10 does not notice."""
    values = array(request, name)
    if values is None:
        raise Refusal(f"input '{name}' is missing")
    return values


def result(response: Any, name: str) -> np.ndarray[Any, Any] | None:
    """Return an output of a child's response, None when it lacks it."""
    tensor = _stub().get_output_tensor_by_name(response, name)
    return None if tensor is None else tensor.as_numpy()


def strings(request: Any, name: str) -> list[list[str]]:
    """Return a STRING input row by row; raises Refusal for bytes that are not UTF-8."""
    values = array(request, name)
    if values is None:
        return []
    try:
        return [[item.decode() for item in row.reshape(-1)] for row in values]
    except UnicodeDecodeError as error:
        raise Refusal(f"input '{name}' is not UTF-8: {error.reason} at byte {error.start}") from None


def refuse_inputs(request: Any, names: Iterable[str]) -> None:
    """Raise Refusal when the request uses an input that this model cannot honour."""
    for name in names:
        values = array(request, name)
        if values is not None and not (values.dtype == np.bool_ and not values.any()):
            raise Refusal(f"input '{name}' is not supported by this model")


def refuse_above(request: Any, maxima: Mapping[str, int]) -> None:
    """Raise Refusal when a scalar input exceeds what this model can honour."""
    for name, maximum in maxima.items():
        values = array(request, name)
        if values is not None and values.max() > maximum:
            raise Refusal(f"input '{name}' must be at most {maximum} in this model, got {values.max()}")


def tensor(name: str, values: Any, dtype: Any) -> Any:
    """Return an output tensor."""
    return _stub().Tensor(name, np.asarray(values, dtype=dtype))


def text_tensor(name: str, rows: Sequence[Sequence[str]]) -> Any:
    """Return a STRING output tensor."""
    return tensor(name, [[item.encode() for item in row] for row in rows], object)


def response(outputs: Sequence[Any]) -> Any:
    """Return a successful response."""
    return _stub().InferenceResponse(output_tensors=list(outputs))


def failure(error: Exception, *, spell_code: bool = False) -> Any:
    """Return an error response: a Refusal keeps its code, anything else is INTERNAL; no traceback.

    Triton 24.10 drops the code of an error on its way to a BLS model. ``spell_code`` puts its name before the
    text, for :func:`child_error` to take off again.
    """
    stub = _stub()
    if isinstance(error, Refusal):
        message, code = str(error), error.code
    else:
        message, code = f"{type(error).__name__}: {error}", "INTERNAL"
        stub.Logger.log_error(message)
    if spell_code:
        message = f"{code}: {message}"
    code = getattr(stub.TritonError, code) if isinstance(code, str) else code
    return stub.InferenceResponse(output_tensors=[], error=stub.TritonError(message, code))


def settled(answers: Sequence[Any]) -> Sequence[Any]:
    """Return the answers of an ``execute``, errors no sooner than :data:`SETTLE_S`."""
    if any(answer.has_error() for answer in answers):
        time.sleep(SETTLE_S)
    return answers


def child_error(answer: Any, names: Mapping[str, str]) -> Refusal:
    """Return the error that a child model answered with; ``names`` are its inputs as the client calls them."""
    error = answer.error()
    message, code = error.message(), error.code()
    name, colon, rest = message.partition(": ")
    if colon and name in {"INVALID_ARG", "INTERNAL", "CANCELLED", "UNAVAILABLE"}:
        message, code = rest, name
    for inner, outer in names.items():
        message = message.replace(f"'{inner}'", f"'{outer}'")
    return Refusal(message, code)


def parameters(request: Any) -> dict[str, Any]:
    """Return the request parameters."""
    values: dict[str, Any] = json.loads(request.parameters() or "{}")
    return values


def spells_code(request: Any) -> bool:
    """Return whether the request asks for errors with their code spelled out."""
    return SPELL_CODE in parameters(request)


class Resting:
    """Keeps what belongs to a finished request alive for a while.

    Threads of Triton 24.10's stub still touch such objects when Python may already have freed them: the one that
    reports a cancellation wakes whoever asked after they may be gone; the one that takes a child's responses
    drops them after the last without holding Python's lock. Under load either corrupts the process sooner or
    later. Both are done within microseconds; a second is ample.
    """

    REST_S = 1.0

    def __init__(self) -> None:
        self._resting: deque[tuple[float, Any]] = deque()

    def keep(self, finished: Any) -> None:
        """Hold on to an object."""
        self._resting.append((time.monotonic(), finished))

    def responses(self, child: Any) -> Iterator[Any]:
        """Yield the responses of a decoupled child."""
        answers = child.exec(decoupled=True)
        try:
            yield from answers
        finally:
            self.keep(answers)

    def let_go(self, rest_s: float = REST_S) -> None:
        """Drop what has rested long enough; one thread calls this now and then."""
        while self._resting and self._resting[0][0] <= time.monotonic() - rest_s:
            self._resting.popleft()


class Reply:
    """The responses to one request: any number of them, then exactly one final flag.

    Triton 24.10 frees a request with its final flag, and crashes as a whole when a sender is asked afterwards
    whether its client has cancelled. So the question and the flag exclude each other here.
    """

    def __init__(self, request: Any) -> None:
        self.closed = False
        self._request = request  # not to be freed before this reply
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._arrived_s = time.monotonic()
        self._spell_code = spells_code(request)

    def send(self, outputs: Sequence[Any]) -> None:
        """Send a response that is not the last."""
        # `outputs` lives until the call is over: the stub drops what the client did not request without holding
        # Python's lock, and must not be the last to let go of it.
        self._sender.send(response(outputs))

    def finish(self, outputs: Sequence[Any] | None = None) -> None:
        """Send the final flag, with a last response or alone."""
        self._end(None if outputs is None else response(outputs))

    def fail(self, error: Exception) -> None:
        """End the request with an error, which leaves no sooner than :data:`SETTLE_S`."""
        last = failure(error, spell_code=self._spell_code)
        early_s = self._arrived_s + SETTLE_S - time.monotonic()
        if early_s > 0:
            self.closed = True
            threading.Timer(early_s, self._end, [last]).start()
        else:
            self._end(last)

    def _end(self, last: Any | None) -> None:
        flag = _stub().TRITONSERVER_RESPONSE_COMPLETE_FINAL
        with self._lock:
            self.closed = True
            if last is None:
                self._sender.send(flags=flag)
            else:
                self._sender.send(last, flags=flag)

    def is_cancelled(self) -> bool:
        """Return whether the client went away before the final flag was sent."""
        with self._lock:
            return not self.closed and bool(self._sender.is_cancelled())
