"""Every RPC of Triton's service: inference goes through admission, the rest is passed on as bytes.

Of several servers the rest goes to the first that is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from trtkit.proxy.admission import Reason
from trtkit.proxy.core import Core
from trtkit.proxy.ending import Ending, Facts, Refusal
from trtkit.proxy.exchange import Exchange
from trtkit.proxy.stream import ClientStream
from trtkit.proxy.upstream import SERVICE, caller_of
from trtkit.proxy.wire.request import model_name

_HEALTH = "/grpc.health.v1.Health/Check"
_OF_ONE_SERVER = (
    *("RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"),
    *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
)
"""What changes or shows the state of one server; the first of several would be changed alone."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse.status, field 1


class Router(grpc.GenericRpcHandler):
    """Chooses the handler of an RPC by its path."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._unary = {
            f"{SERVICE}ModelInfer": self._infer,
            f"{SERVICE}ServerLive": self._live,
            f"{SERVICE}ServerReady": self._ready,
            f"{SERVICE}ModelReady": self._model_ready,
            _HEALTH: self._health,
        }

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler, or None for a service that Triton does not have."""
        path: str = handler_call_details.method
        if path == f"{SERVICE}ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if path in self._unary:
            return grpc.unary_unary_rpc_method_handler(self._unary[path])
        if path.startswith(SERVICE):

            async def forward(data: bytes, context: Any) -> bytes:
                return await self._forward(path, data, context)

            return grpc.unary_unary_rpc_method_handler(forward)
        return None

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await ClientStream(self._core, context).serve(requests)

    async def _infer(self, data: bytes, context: Any) -> bytes:
        try:
            model = model_name(data)
            fleet = self._core.fleet
            admitted = await fleet.admits(model) and not (await fleet.schema(model)).decoupled
        except Refusal as refusal:
            return await _abort(context, refusal.ending, Facts())
        # Triton answers ModelInfer for a decoupled model itself: UNIMPLEMENTED.
        if not admitted:
            return await self._forward(f"{SERVICE}ModelInfer", data, context)
        reply = _UnaryReply()
        caller = caller_of(context, self._core.clock())
        exchange = Exchange(self._core, model, caller, reply)
        self._core.spawn(exchange.run(data, unary=True))
        try:
            ending = await reply.ended
        except asyncio.CancelledError:
            exchange.cancel(caller.why_left(self._core.clock()))
            raise
        if ending.reason is not Reason.OK:
            return await _abort(context, ending, exchange.facts)
        context.set_trailing_metadata(exchange.facts.trailers(ending))
        return reply.message

    async def _forward(self, path: str, data: bytes, context: Any) -> bytes:
        caller, fleet = caller_of(context, self._core.clock()), self._core.fleet
        name, servers = path.removeprefix(SERVICE), len(fleet.upstreams)
        if servers > 1 and name in _OF_ONE_SERVER:
            text = f"{name} is about one server, and {servers} are behind this proxy: ask them themselves"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)
        upstream = fleet.first
        try:
            reply: bytes = await upstream.unary(path, data, caller.metadata, context.time_remaining())
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                fleet.suspect(upstream)
            trailers = tuple(error.trailing_metadata() or ())
            await context.abort(error.code(), error.details() or "", trailers)
            raise
        if path.startswith(f"{SERVICE}RepositoryModel"):
            fleet.forget_schemas()
        return reply

    async def _live(self, _data: bytes, _context: Any) -> bytes:
        from tritonclient.grpc import service_pb2

        return bytes(service_pb2.ServerLiveResponse(live=True).SerializeToString())

    async def _ready(self, _data: bytes, _context: Any) -> bytes:
        from tritonclient.grpc import service_pb2

        ready = await self._core.ready()
        return bytes(service_pb2.ServerReadyResponse(ready=ready).SerializeToString())

    async def _model_ready(self, data: bytes, context: Any) -> bytes:
        """Ask Triton; while it is away or the proxy drains, no model is ready."""
        from tritonclient.grpc import service_pb2

        if not await self._core.ready():
            return bytes(service_pb2.ModelReadyResponse(ready=False).SerializeToString())
        return await self._forward(f"{SERVICE}ModelReady", data, context)

    async def _health(self, data: bytes, _context: Any) -> bytes:
        """Answer for the process when no service is named, else for the service behind it."""
        return _SERVING if not data or await self._core.ready() else _NOT_SERVING


class _UnaryReply:
    """Collects the one message of a unary call."""

    def __init__(self) -> None:
        self.message = b""
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

    def put(self, message: bytes) -> bool:
        self.message = message
        return True

    async def end(self, exchange: Exchange, ending: Ending) -> None:  # noqa: ARG002 - part of Reply
        if not self.ended.done():
            self.ended.set_result(ending)


async def _abort(context: Any, ending: Ending, facts: Facts) -> bytes:
    await context.abort(grpc.StatusCode[ending.status], ending.message, facts.trailers(ending))
    return b""
