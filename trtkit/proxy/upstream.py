"""One Triton behind the proxy: one channel, raw bytes, and what its models declare."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import grpc
import grpc.aio

from trtkit.conventions import (
    CLASS_HEADER,
    ENGINE_MODEL,
    SESSION_HEADER,
    TENANT_HEADER,
    TEXT_MODELS,
    TRITON_GRPC_ERROR_HEADER,
)
from trtkit.proxy.admission import Reason
from trtkit.proxy.ending import Caller, Metadata, Refusal
from trtkit.proxy.health import Health
from trtkit.proxy.wire.failure import ending_of, error_in
from trtkit.proxy.wire.response import stop_request
from trtkit.proxy.wire.schema import ModelSchema, read_schema

SERVICE = "/inference.GRPCInferenceService/"
_PROBE_S = 2.0
_TENANT_CHARACTERS = 128
_KEPT = ("grpc-", "x-trtkit-", ":")
_CONSUMED = ("user-agent", "te", "content-type", TRITON_GRPC_ERROR_HEADER)
UNLIMITED_MESSAGES = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Upstream:
    """Calls to one Triton server. Messages are passed as bytes; only the proxy's own questions are decoded."""

    def __init__(self, target: str) -> None:
        options = [
            *UNLIMITED_MESSAGES,
            ("grpc.use_local_subchannel_pool", 1),
            # A restarted server is found again within a second.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        self.target = target
        self.heard_s = -math.inf
        """When it last sent something, on the event loop's clock."""
        self._channel: Any = grpc.aio.insecure_channel(target, options=options)
        self._schemas: dict[str, asyncio.Future[ModelSchema]] = {}

    def unary(self, method: str, data: bytes, metadata: Metadata = (), timeout_s: float | None = None) -> Any:
        """Start a unary call; ``method`` is the full path."""
        return self._channel.unary_unary(method)(data, metadata=metadata, timeout=timeout_s)

    def infer_stream(self, data: bytes, metadata: Metadata = (), timeout_s: float | None = None) -> Any:
        """Start a stream for one request: on the wire, ModelStreamInfer that is half-closed at once."""
        start = self._channel.unary_stream(f"{SERVICE}ModelStreamInfer")
        return start(data, metadata=metadata, timeout=timeout_s)

    def open_stream(self, metadata: Metadata) -> Any:
        """Start a ModelStreamInfer that takes many requests."""
        return self._channel.stream_stream(f"{SERVICE}ModelStreamInfer")(metadata=metadata)

    async def schema(self, model: str) -> ModelSchema:
        """Return what a model declares, asked once.

        Raises:
            Refusal: The server cannot be reached, or does not know the model.
        """
        if model not in self._schemas:
            self._schemas[model] = asyncio.ensure_future(self._fetch_schema(model))
            self._schemas[model].add_done_callback(lambda done: self._forget_failure(model, done))
        try:
            return await asyncio.shield(self._schemas[model])
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from error

    async def warm(self) -> None:
        """Ask for the schemas before the first request waits for them."""
        for model in (ENGINE_MODEL, *TEXT_MODELS):
            with contextlib.suppress(Refusal):
                await self.schema(model)

    def forget_schemas(self) -> None:
        """Ask again: the server was restarted, or its models were reloaded."""
        self._schemas.clear()

    async def reach(self) -> bool:
        """Tell whether there is a connection, and wait a while for one.

        Where there is none, nothing that was to be sent has left the proxy.
        """
        ready, failed = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        give_up_s = asyncio.get_running_loop().time() + _PROBE_S
        while (state := self._channel.get_state(try_to_connect=True)) is not ready:
            left_s = give_up_s - asyncio.get_running_loop().time()
            if state is failed or left_s <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._channel.wait_for_state_change(state), left_s)
        return True

    async def ask_health(self, timeout_s: float) -> Health:
        """Ask whether the server and all its models are ready, and if not whether its engine is."""
        from tritonclient.grpc import service_pb2

        asked_s = asyncio.get_running_loop().time()
        question = service_pb2.ModelReadyRequest(name=ENGINE_MODEL).SerializeToString()
        try:
            reply = await self.unary(f"{SERVICE}ServerReady", b"", timeout_s=timeout_s)
            if service_pb2.ServerReadyResponse.FromString(reply).ready:
                return Health.READY
            reply = await self.unary(f"{SERVICE}ModelReady", question, timeout_s=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                # One that streams answers is not stuck, only slow to say so.
                return Health.ALIVE if self.heard_s > asked_s else Health.SILENT
            # Over a connection that stands it is the server that says so, for instance that the question is restricted.
            connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
            return Health.ALIVE if connected else Health.UNREACHABLE
        ready = service_pb2.ModelReadyResponse.FromString(reply).ready
        return Health.ALIVE if ready else Health.UNREADY

    async def stop(self, upstream_id: str, model: str) -> bool:
        """Ask the engine to drop a model's request; False when it cannot be asked."""
        try:
            schema = await self.schema(model)
            if schema.dialect is not None and schema.dialect.stops_engine:
                schema = await self.schema(ENGINE_MODEL)
            if "stop" not in schema.inputs:
                return False
            call = self.infer_stream(stop_request(schema, upstream_id), timeout_s=_PROBE_S)
            return all([not _is_error(reply) async for reply in call])
        except (Refusal, grpc.aio.AioRpcError):
            return False

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def _fetch_schema(self, model: str) -> ModelSchema:
        config = await self._config(model)
        decoupled = config.model_transaction_policy.decoupled
        # An ensemble streams when one of its steps does.
        for step in config.ensemble_scheduling.step:
            decoupled = decoupled or (await self._config(step.model_name)).model_transaction_policy.decoupled
        return read_schema(config, decoupled=decoupled)

    async def _config(self, model: str) -> Any:
        from tritonclient.grpc import service_pb2

        question = service_pb2.ModelConfigRequest(name=model).SerializeToString()
        reply = await self.unary(f"{SERVICE}ModelConfig", question, timeout_s=_PROBE_S)
        return service_pb2.ModelConfigResponse.FromString(reply).config

    def _forget_failure(self, model: str, done: asyncio.Future[ModelSchema]) -> None:
        if (done.cancelled() or done.exception()) and self._schemas.get(model) is done:
            del self._schemas[model]


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """Translate the failure of a call that has produced nothing."""
    code, detail = error.code(), error.details() or ""
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Refusal(Reason.NO_BACKEND, detail)
    ending = ending_of(code.name, detail)
    return Refusal(ending.reason, detail, code=ending.code)


def caller_of(context: Any, now_s: float) -> Caller:
    """Read what a client's call says beside its messages; the proxy's own headers are not passed on."""
    headers = [(key, value) for key, value in context.invocation_metadata() or ()]
    named: dict[str, dict[str, None]] = {}
    for key, value in headers:
        named.setdefault(key, {})[str(value)] = None
    left_s = context.time_remaining()
    return Caller(
        metadata=tuple(
            each for each in headers if not each[0].startswith(_KEPT) and each[0] not in _CONSUMED
        ),
        arrival_s=now_s,
        deadline_s=math.inf if left_s is None else now_s + left_s,
        grpc_errors=list(named.get(TRITON_GRPC_ERROR_HEADER, ())) == ["true"],
        class_names=tuple(named.get(CLASS_HEADER, ())),
        sessions=tuple(named.get(SESSION_HEADER, ())),
        tenants=tuple(tenant[:_TENANT_CHARACTERS] for tenant in named.get(TENANT_HEADER, ())),
    )


def _is_error(reply: bytes) -> bool:
    """Tell whether a stop failed; TensorRT-LLM's Python API says of the stop too that it was cancelled."""
    error = error_in(reply)
    return error is not None and error.status != "CANCELLED"
