"""What an in-band error of Triton means. Its text carries no status code, so the text has to tell.

Asking Triton for status codes instead (``triton_grpc_error``) is no way: release 24.10 crashes as a whole when such a
stream fails while its request is still being handed over.
"""

from __future__ import annotations

import re

from trtkit.proxy.admission import FIXED_PUSHBACK_MS, Reason
from trtkit.proxy.ending import Ending

_SPELLED = {
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNAVAILABLE": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
    "INTERNAL": "INTERNAL",
}
"""Codes as trtkit's own models spell them before the text, when they are asked to."""
_SPELLING = re.compile(rf"({'|'.join(_SPELLED)}): ")

_CODES = (
    ("maximum queue size", "RESOURCE_EXHAUSTED"),
    ("timeout expired", "DEADLINE_EXCEEDED"),
    ("no available versions", "UNAVAILABLE"),  # also while the server is stopping
    ("unknown model", "NOT_FOUND"),
    ("is not ready", "UNAVAILABLE"),
    ("is not healthy", "UNAVAILABLE"),
    ("server is stopping", "UNAVAILABLE"),
    ("unexpected shape", "INVALID_ARGUMENT"),
    ("unexpected datatype", "INVALID_ARGUMENT"),
    ("unexpected inference input", "INVALID_ARGUMENT"),
    ("decoupled transaction policy", "UNIMPLEMENTED"),
)
"""Texts of Triton and of TensorRT-LLM's back end, in lower case, and the status they stand for."""


def read_error(text: str) -> Ending:
    """Return the end that an ``error_message`` of a stream means; what it does not tell is INTERNAL."""
    if spelled := _SPELLING.search(text):
        code = _SPELLED[spelled[1]]
        text = text[: spelled.start()] + text[spelled.end() :]
    else:
        lower = text.lower()
        code = next((code for known, code in _CODES if known in lower), "INTERNAL")
    return ending_of(code, text)


def error_in(data: bytes) -> Ending | None:
    """Return the error in a serialized ModelStreamInferResponse, or None."""
    from tritonclient.grpc import service_pb2

    message: str = service_pb2.ModelStreamInferResponse.FromString(data).error_message
    return read_error(message) if message else None


def ending_of(code: str, text: str) -> Ending:
    """Return the end that a status of the inference server means."""
    if code == "INVALID_ARGUMENT":
        return Ending(Reason.INVALID_INPUT, text, pushback_ms=-1)
    if code == "UNAVAILABLE":
        return Ending(Reason.NO_BACKEND, text, FIXED_PUSHBACK_MS[Reason.NO_BACKEND.retry])
    return Ending(Reason.UPSTREAM_ERROR, text, code=code)
