"""A client's ModelStreamInfer: many requests in, their replies merged, each ending once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from trtkit.proxy.admission import Reason
from trtkit.proxy.core import Core
from trtkit.proxy.ending import Ending, Facts, Metadata, Refusal
from trtkit.proxy.exchange import Exchange
from trtkit.proxy.upstream import caller_of
from trtkit.proxy.wire.failure import error_in
from trtkit.proxy.wire.request import model_name
from trtkit.proxy.wire.response import error_chunk

_HALF_CLOSE_S = 0.02
"""A client that sends one request closes its side right behind it; an answer waits this long to be a status."""
_OUTBOX_BYTES = 4 << 20
"""Room for a slow reader: the longest answers take a few hundred kilobytes."""

log = logging.getLogger(__name__)


class ClientStream:
    """Gives each request an exchange of its own; requests for other models share one stream that passes through."""

    def __init__(self, core: Core, context: Any) -> None:
        self._core = core
        self._context = context
        self._caller = caller_of(context, core.clock())
        self._exchanges: set[Exchange] = set()
        self._requests = 0
        self._closed = False
        self._half_closed = asyncio.Event()
        self._done = asyncio.Event()
        self._outbox = Outbox(context)
        self._status: tuple[str, str] | None = None
        self._trailers: Metadata = ()
        self._lane: _Lane | None = None

    async def serve(self, requests: AsyncIterator[bytes]) -> None:
        """Serve the stream until the client has closed its side and all has been answered."""
        reading = asyncio.create_task(self._read(requests))
        writing = asyncio.create_task(self._outbox.run())
        self._core.streams.add(self)
        try:
            await self._done.wait()
            self._cancel_rest()
            await self._outbox.flush()
        finally:
            self._closed = True
            reading.cancel()
            writing.cancel()
            self._core.streams.discard(self)
            self._cancel_rest()
        if self._status is not None:
            code, message = self._status
            await self._context.abort(grpc.StatusCode[code], message, self._trailers)
        self._context.set_trailing_metadata(self._trailers)

    def put(self, message: bytes) -> bool:
        """Take a message for the client; False when it has stopped reading and too much is waiting for it."""
        return self._closed or self._outbox.put(message)

    async def pass_on(self, message: bytes) -> None:
        """Take a message, and wait while the client is slow."""
        if not self.put(message):
            await self._outbox.flush()

    async def end(self, exchange: Exchange, ending: Ending) -> None:
        """Answer for one exchange: as the stream's status where that is possible or asked for, else in-band."""
        self._trailers = exchange.facts.trailers(ending)
        if ending.reason is not Reason.OK and not self._closed:
            if await self._may_end_stream():
                self.finish(ending.status, ending.message, self._trailers)
            else:
                self.put(error_chunk(exchange.client_id, exchange.model, ending))
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
            self.finish_with(refusal.ending)
        except Exception:
            log.exception("cannot read the client's stream")
            self.finish_with(Ending(Reason.INTERNAL))
        if self._lane is not None:
            await self._lane.close()
        self._half_closed.set()
        self.finish_if_idle()

    async def _take(self, data: bytes) -> None:
        self._requests += 1
        model = model_name(data)
        if await self._core.fleet.admits(model):
            exchange = Exchange(self._core, model, self._caller, self)
            self._exchanges.add(exchange)
            self._core.spawn(exchange.run(data))
            return
        if self._lane is None:
            call = self._core.fleet.first.open_stream(self._caller.metadata)
            self._lane = _Lane(self, call, errors_end=self._caller.grpc_errors)
            self._lane.relaying = asyncio.create_task(self._lane.relay())
        await self._lane.send(data)

    async def _may_end_stream(self) -> bool:
        """Tell whether an error may be the stream's status: asked for, or nobody else is on the stream."""
        if self._caller.grpc_errors:
            return True
        with contextlib.suppress(asyncio.TimeoutError):
            if self._requests == 1:
                await asyncio.wait_for(self._half_closed.wait(), _HALF_CLOSE_S)
        return self._half_closed.is_set() and self._requests == 1

    def finish_with(self, ending: Ending) -> None:
        """End the stream with a status of the proxy's own."""
        self.finish(ending.status, ending.message, Facts().trailers(ending))

    def _cancel_rest(self) -> None:
        for exchange in list(self._exchanges):
            exchange.cancel(self._caller.why_left(self._core.clock()))
        if self._lane is not None:
            self._lane.cancel()


class Outbox:
    """What waits to be written to one client, so that nobody but the client waits for a slow one."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()
        self._bytes = 0

    def put(self, message: bytes) -> bool:
        """Add a message; tell whether there is room for more."""
        self._messages.put_nowait(message)
        self._bytes += len(message)
        return self._bytes <= _OUTBOX_BYTES

    async def run(self) -> None:
        """Write the messages one by one, until cancelled; what a client that is gone would have got is dropped."""
        gone = False
        while True:
            message = await self._messages.get()
            try:
                if not gone:
                    await self._context.write(message)
            except Exception as error:  # grpc tells in several ways that the client is gone
                log.debug("cannot write to the client: %r", error)
                gone = True
            finally:
                self._bytes -= len(message)
                self._messages.task_done()

    async def flush(self) -> None:
        """Wait until all is written."""
        await self._messages.join()


class _Lane:
    """Passes requests for other models through, on one upstream stream that keeps their order."""

    def __init__(self, stream: ClientStream, call: Any, *, errors_end: bool) -> None:
        self._errors_end = errors_end
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
                ending = error_in(data) if self._errors_end else None
                if ending is not None:
                    self._stream.finish(ending.status, ending.detail, ())
                    break
                await self._stream.pass_on(data)
        except grpc.aio.AioRpcError as error:
            self._stream.finish(
                error.code().name, error.details() or "", tuple(error.trailing_metadata() or ())
            )
        except asyncio.CancelledError:
            pass
        self.over = True
        self._stream.finish_if_idle()
