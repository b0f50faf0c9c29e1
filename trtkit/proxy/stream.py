"""A client's ModelStreamInfer: many requests in, their replies merged, each ending once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from trtkit.conventions import TRITON_GRPC_ERROR_HEADER
from trtkit.proxy.admission import Reason
from trtkit.proxy.core import Core
from trtkit.proxy.ending import Ending, Facts, Metadata, Refusal
from trtkit.proxy.exchange import Exchange
from trtkit.proxy.metrics import MODELS
from trtkit.proxy.upstream import caller_of
from trtkit.proxy.wire.request import model_name
from trtkit.proxy.wire.response import error_chunk

_HALF_CLOSE_S = 0.02
"""A client that sends one request closes its side right behind it; an answer waits this long to be a status."""

log = logging.getLogger(__name__)


class ClientStream:
    """Gives each request an exchange of its own; requests for other models share one stream that passes through."""

    def __init__(self, core: Core, context: Any) -> None:
        self._core = core
        self._context = context
        self._caller = caller_of(context, core.clock())
        self._exchanges: set[Exchange] = set()
        self._requests = 0
        self._sent = False
        self._closed = False
        self._half_closed = asyncio.Event()
        self._done = asyncio.Event()
        self._writing = asyncio.Lock()
        self._status: tuple[str, str] | None = None
        self._trailers: Metadata = ()
        self._lane: _Lane | None = None

    async def serve(self, requests: AsyncIterator[bytes]) -> None:
        """Serve the stream until the client has closed its side and all has been answered."""
        reading = asyncio.create_task(self._read(requests))
        try:
            await self._done.wait()
        finally:
            self._closed = True
            reading.cancel()
            self._cancel_rest()
        if self._status is not None:
            code, message = self._status
            await self._context.abort(grpc.StatusCode[code], message, self._trailers)
        self._context.set_trailing_metadata(self._trailers)

    async def send(self, message: bytes) -> None:
        """Write to the client, one message at a time."""
        async with self._writing:
            if self._closed:
                return
            self._sent = True
            try:
                await self._context.write(message)
            except Exception as error:  # the client is gone; grpc tells so in several ways
                log.debug("cannot write to the client: %r", error)
                self._closed = True

    async def end(self, exchange: Exchange, ending: Ending) -> None:
        """Answer for one exchange: as the stream's status where that is possible or asked for, else in-band."""
        self._trailers = exchange.facts.trailers(ending)
        if ending.reason is not Reason.OK and not self._closed:
            if await self._may_end_stream():
                self.finish(ending.status, ending.message, self._trailers)
            else:
                await self.send(error_chunk(exchange.client_id, exchange.model, ending))
        self._exchanges.discard(exchange)
        self.finish_if_idle()

    def finish(self, code: str, message: str, trailers: Metadata) -> None:
        """End the stream with a status; what else is under way on it is cancelled."""
        self._status, self._trailers = (code, message), trailers
        self._done.set()

    def finish_if_idle(self) -> None:
        """End the stream if the client has closed its side and nothing is under way."""
        if self._half_closed.is_set() and not self._exchanges and (self._lane is None or self._lane.over):
            self._done.set()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for data in requests:
                await self._take(data)
        except Refusal as refusal:
            self._finish_with(refusal.ending)
        except Exception:
            log.exception("cannot read the client's stream")
            self._finish_with(Ending(Reason.INTERNAL))
        if self._lane is not None:
            await self._lane.close()
        self._half_closed.set()
        self.finish_if_idle()

    async def _take(self, data: bytes) -> None:
        self._requests += 1
        model = model_name(data)
        if model in MODELS:
            exchange = Exchange(self._core, model, self._caller, self)
            self._exchanges.add(exchange)
            self._core.spawn(exchange.run(data))
            return
        if self._lane is None:
            self._lane = _Lane(self, self._core.upstream.open_stream(self._lane_metadata()))
            self._lane.relaying = asyncio.create_task(self._lane.relay())
        await self._lane.send(data)

    def _lane_metadata(self) -> Metadata:
        own = ((TRITON_GRPC_ERROR_HEADER, "true"),) if self._caller.grpc_errors else ()
        return (*self._caller.metadata, *own)

    async def _may_end_stream(self) -> bool:
        if self._caller.grpc_errors:
            return True
        with contextlib.suppress(asyncio.TimeoutError):
            if self._requests == 1 and not self._sent:
                await asyncio.wait_for(self._half_closed.wait(), _HALF_CLOSE_S)
        return self._half_closed.is_set() and self._requests == 1 and not self._sent

    def _finish_with(self, ending: Ending) -> None:
        self.finish(ending.status, ending.message, Facts().trailers(ending))

    def _cancel_rest(self) -> None:
        timed_out = self._core.clock() >= self._caller.deadline_s
        for exchange in list(self._exchanges):
            exchange.cancel(Reason.DEADLINE if timed_out else Reason.CLIENT_CANCELLED)
        if self._lane is not None:
            self._lane.cancel()


class _Lane:
    """Passes requests for other models through, on one upstream stream that keeps their order."""

    def __init__(self, stream: ClientStream, call: Any) -> None:
        self.over = False
        self.relaying: asyncio.Task[None] | None = None
        self._stream = stream
        self._call = call

    async def send(self, data: bytes) -> None:
        # A call that has ended says why through `relay`.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(data)

    async def close(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    def cancel(self) -> None:
        self._call.cancel()

    async def relay(self) -> None:
        try:
            async for data in self._call:
                await self._stream.send(data)
        except grpc.aio.AioRpcError as error:
            self._stream.finish(
                error.code().name, error.details() or "", tuple(error.trailing_metadata() or ())
            )
        except asyncio.CancelledError:
            pass
        self.over = True
        self._stream.finish_if_idle()
