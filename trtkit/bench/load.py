"""The measuring client: one gRPC stream per request, sent at its time whatever became of the earlier ones.

It reads the status and the trailers of each stream, which tritonclient's iterator does not show.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from trtkit.bench.filler import Filler
from trtkit.bench.measured import Measured, outcome_of
from trtkit.bench.schedule import Shot
from trtkit.conventions import (
    BLS_MODEL,
    CLASS_HEADER,
    CONSTRAINT_TRAILER,
    QUEUE_TRAILER,
    REASON_TRAILER,
    TENANT_HEADER,
)
from trtkit.errors import StartError
from trtkit.proxy.admission import Outcome, Reason
from trtkit.proxy.wire.response import Chunk

_SERVICE = "/inference.GRPCInferenceService/"
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
_CONNECT_S = 5.0
_LEAVE_AT_ONCE_S = 0.05
_LENGTH = struct.Struct("<I")


class Target:
    """A Triton, or a proxy in front of one."""

    def __init__(self, address: str, filler: Filler | None = None, model: str = BLS_MODEL) -> None:
        self.address = address
        self.model = model
        self._filler = filler
        self._channel: Any = None
        self._infer: Any = None
        self._may_forbid_end = False

    async def __aenter__(self) -> Target:  # noqa: PYI034 - typing.Self needs Python 3.11
        self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        self._infer = self._channel.stream_stream(_SERVICE + "ModelStreamInfer")
        try:
            config = await self._config()
        except grpc.aio.AioRpcError as error:
            await self._channel.close()
            hint = "start it first, or name the gRPC port of a Triton or proxy that serves this contract"
            raise StartError(
                f"{self.address} does not serve {self.model!r}: {error.code().name}: {error.details()}",
                hint=hint,
            ) from error
        self._may_forbid_end = any(each.name == "end_id" for each in config.input)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def _config(self) -> Any:
        call = self._channel.unary_unary(_SERVICE + "ModelConfig")
        request = service_pb2.ModelConfigRequest(name=self.model).SerializeToString()
        return service_pb2.ModelConfigResponse.FromString(await call(request, timeout=_CONNECT_S)).config

    async def described(self) -> dict[str, str]:
        """Return what the server says of itself, and the digest of the model's configuration there."""
        call = self._channel.unary_unary(_SERVICE + "ServerMetadata")
        answer = service_pb2.ServerMetadataResponse.FromString(await call(b"", timeout=_CONNECT_S))
        config = (await self._config()).SerializeToString(deterministic=True)
        return {
            "server": f"{answer.name} {answer.version}",
            "model_config_sha256": hashlib.sha256(config).hexdigest(),
        }

    async def ask(
        self, shot: Shot, at_s: float = 0.0, lag_s: float = 0.0, on_token: Callable[[], None] = lambda: None
    ) -> Measured:
        """Send one request and read its answer to the end."""
        metadata = [(CLASS_HEADER, shot.class_name)]
        if shot.tenant:
            metadata.append((TENANT_HEADER, shot.tenant))
        watch = _Watch(shot, self.tokens_in, on_token)
        call = self._infer(self._messages(shot), metadata=metadata, timeout=shot.deadline_s)
        await watch.read(call)
        return watch.measured(at_s, lag_s)

    async def _messages(self, shot: Shot) -> AsyncIterator[bytes]:
        yield _request(self.model, shot, forbid_end=shot.whole_answer and self._may_forbid_end)

    def tokens_in(self, text: bytes) -> int:
        """Return the tokens of a message: one, unless it spans words or holds characters of several tokens."""
        if self._filler is None or (text.isascii() and len(text.split()) < 2):
            return 1
        return max(1, self._filler.count(text.decode("utf-8", errors="replace")))


class _Watch:
    """Times one stream."""

    def __init__(self, shot: Shot, tokens_in: Callable[[bytes], int], on_token: Callable[[], None]) -> None:
        self._shot = shot
        self._tokens_in = tokens_in
        self._on_token = on_token
        self._sent_s = time.monotonic()
        self._times_s: list[float] = []
        self._tokens = 0
        self._first_tokens = 1
        self._left = False
        self._final = False
        self._reason, self._kind = "truncated_stream", Outcome.FAILED
        self._queue_s: float | None = None
        self._proxied = False
        self._constraint = ""

    async def read(self, call: Any) -> None:
        """Read a call to its end, or leave it as the shot says."""
        if self._shot.cancel_after_tokens == 0:
            asyncio.get_running_loop().call_later(_LEAVE_AT_ONCE_S, self._leave, call)
        try:
            async for data in call:
                if not self._take(data, call):
                    break
                if self._shot.read_pause_s:
                    await asyncio.sleep(self._shot.read_pause_s)
            await self._read_status(call)
        except grpc.aio.AioRpcError as error:
            self._note_trailers(error.trailing_metadata())
            self._end(self._reason_of(error.details() or "", error.code()), error.code().name)
        except asyncio.CancelledError:
            if not self._left:
                call.cancel()
                raise
        if self._left:
            self._reason, self._kind = "client_cancelled", Outcome.CANCELLED

    def _take(self, data: bytes, call: Any) -> bool:
        """Note a message; return whether to read on."""
        chunk = Chunk(data, self._tokens_in)
        if chunk.error:
            code, _, text = chunk.error.removeprefix("[").partition("] ")
            self._end(self._reason_of(text or chunk.error), code if text else "")
            call.cancel()
            return False
        if chunk.tokens and not chunk.empty:
            self._first_tokens = self._first_tokens if self._tokens else chunk.tokens
            self._times_s.append(time.monotonic() - self._sent_s)
            self._tokens += chunk.tokens
            self._on_token()
        self._final = self._final or chunk.final
        leave_at = self._shot.cancel_after_tokens
        if leave_at is not None and self._tokens >= max(1, leave_at) and not self._final:
            self._leave(call)
        return not self._left

    async def _read_status(self, call: Any) -> None:
        if self._left or self._reason != "truncated_stream":
            return
        self._note_trailers(await call.trailing_metadata())
        if self._final:
            empty = not self._tokens
            self._reason, self._kind = ("empty_answer", Outcome.FAILED) if empty else ("ok", Outcome.OK)

    def _leave(self, call: Any) -> None:
        if not call.done():
            self._left = True
            call.cancel()

    def _reason_of(self, text: str, code: grpc.StatusCode | None = None) -> str:
        """Return the proxy's reason if one leads the text, else the text; gRPC words the own deadline in many ways."""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and not self._proxied:
            return str(Reason.DEADLINE.value)
        word = text.partition(":")[0]
        return word if self._proxied and word.isidentifier() else text

    def _end(self, reason: str, code: str) -> None:
        self._kind = outcome_of(reason, code)
        if self._kind is Outcome.CANCELLED:  # and not by this client
            self._kind = Outcome.FAILED
        self._reason = reason if self._kind is not Outcome.FAILED or not code else f"{code}: {reason}"

    def _note_trailers(self, trailers: Any) -> None:
        found = dict(trailers or ())
        self._proxied = REASON_TRAILER in found
        self._constraint = str(found.get(CONSTRAINT_TRAILER, ""))
        if QUEUE_TRAILER in found:
            self._queue_s = int(found[QUEUE_TRAILER]) / 1000

    def measured(self, at_s: float, lag_s: float) -> Measured:
        shot, times_s = self._shot, self._times_s
        return Measured(
            shot.class_name,
            self._reason,
            times_s[0] if times_s else None,
            times_s[-1] if times_s else None,
            self._tokens,
            constraint=self._constraint,
            kind=self._kind,
            at_s=at_s,
            lag_s=lag_s,
            ended_s=time.monotonic() - self._sent_s,
            queue_s=self._queue_s,
            prompt_tokens=shot.prompt_tokens,
            max_tokens=shot.max_tokens,
            tenant=shot.tenant,
            gaps_s=tuple(b - a for a, b in pairwise(times_s)),
            slow_reader=shot.read_pause_s > 0,
            proxied=self._proxied,
            first_tokens=self._first_tokens,
        )


async def fire_at(target: Target, shots: Sequence[Shot], done: list[Measured]) -> None:
    """Send every shot at its time, and await them all; whoever has ended is in ``done``, also after a cancellation."""
    start_s = time.monotonic()

    async def one(shot: Shot) -> None:
        await asyncio.sleep(max(0.0, start_s + shot.at_s - time.monotonic()))
        at_s = time.monotonic() - start_s
        done.append(await target.ask(shot, at_s, at_s - shot.at_s))

    await asyncio.gather(*(one(shot) for shot in shots))


@dataclass(frozen=True)
class Spell:
    """A closed loop's requests, and when it took on no further ones."""

    done: Sequence[Measured]
    end_s: float


async def keep_busy(
    target: Target, shots: Iterator[Shot], workers: int, least_s: float, least_answers: int
) -> Spell:
    """Keep so many requests under way until enough time has passed and enough are answered.

    What is then under way is read to its end. Stops early when the shots run out.
    """
    start_s, done, ends_s = time.monotonic(), list[Measured](), list[float]()

    async def work() -> None:
        while (shot := next(shots, None)) is not None:
            done.append(await target.ask(shot, time.monotonic() - start_s))
            now_s = time.monotonic() - start_s
            if now_s >= least_s and len(done) >= least_answers:
                ends_s.append(now_s)
                return
            if done[-1].kind is not Outcome.OK:
                await asyncio.sleep(_LEAVE_AT_ONCE_S)

    await asyncio.gather(*(work() for _ in range(workers)))
    return Spell(done, min(ends_s, default=time.monotonic() - start_s))


def _request(model: str, shot: Shot, *, forbid_end: bool) -> bytes:
    request: Any = service_pb2.ModelInferRequest(model_name=model)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    text = shot.prompt.encode()
    _add(request, "text_input", "BYTES", _LENGTH.pack(len(text)) + text)
    _add(request, "max_tokens", "INT32", struct.pack("<i", shot.max_tokens))
    _add(request, "stream", "BOOL", b"\1")
    if forbid_end:
        _add(request, "end_id", "INT32", struct.pack("<i", -1))
    request.outputs.add(name="text_output")
    return bytes(request.SerializeToString())


def _add(request: Any, name: str, datatype: str, raw: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
    request.raw_input_contents.append(raw)
