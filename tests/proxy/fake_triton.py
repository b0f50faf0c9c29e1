"""A Triton for faults that a real one cannot be told to make: its replies are a script of the test's."""

from __future__ import annotations

import asyncio
import collections

import grpc
import numpy as np
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

TEXT = {"text_input": ("STRING", False), "max_tokens": ("INT32", False), "stream": ("BOOL", True)}
TOKENS = {
    "input_ids": ("INT32", False),
    "input_lengths": ("INT32", False),
    "request_output_len": ("INT32", False),
    "streaming": ("BOOL", True),
    "stop": ("BOOL", True),
}


def model_config(name, inputs, *, decoupled=True):
    config = model_config_pb2.ModelConfig(name=name, max_batch_size=4)
    config.model_transaction_policy.decoupled = decoupled
    for tensor, (kind, optional) in inputs.items():
        dims = [-1] if tensor == "input_ids" else [1]
        data_type = model_config_pb2.DataType.Value(f"TYPE_{kind}")
        config.input.add(name=tensor, data_type=data_type, dims=dims, optional=optional)
    return config


def text_chunk(request, text="tok", *, final=False, empty=False):
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.id, response.model_name, response.model_version = request.id, request.model_name, "1"
    response.parameters["triton_final_response"].bool_param = final
    if not empty:
        response.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
        raw = text.encode()
        response.raw_output_contents.append(len(raw).to_bytes(4, "little") + raw)
    return message


def final_chunk(request):
    return text_chunk(request, final=True, empty=True)


async def three_tokens(request, context):
    for n in range(3):
        yield text_chunk(request, f"t{n}")
    yield final_chunk(request)


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """One server on a free port. ``script`` answers each request; ``stopped`` holds the ids it was told to stop."""

    def __init__(self) -> None:
        self.script = three_tokens
        self.unary = None
        self.requests = []
        self.metadata = []
        self.stopped: set[str] = set()
        self._stops = collections.defaultdict(asyncio.Event)
        self.running = 0
        self.ready = True
        self.address = "127.0.0.1:0"
        self.configs = {
            "tensorrt_llm_bls": model_config("tensorrt_llm_bls", TEXT),
            "tensorrt_llm": model_config("tensorrt_llm", TOKENS),
            "ensemble": model_config("ensemble", TEXT, decoupled=False),
        }
        step = self.configs["ensemble"].ensemble_scheduling.step
        step.add(model_name="tensorrt_llm")

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *error):
        await self.server.stop(0)

    async def start(self):
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.server = grpc.aio.server(options=[*unlimited, ("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port(self.address)}"
        await self.server.start()

    async def until_stopped(self, request):
        """Wait as an engine does that is told to drop the request."""
        await self._stops[request.id].wait()

    async def ModelStreamInfer(self, requests, context):
        self.metadata.append(dict(context.invocation_metadata()))
        async for request in requests:
            if any(tensor.name == "stop" for tensor in request.inputs):
                self.stopped.add(request.id)
                self._stops[request.id].set()
                yield final_chunk(request)
                continue
            self.requests.append(request)
            self.running += 1
            try:
                async for reply in self.script(request, context):
                    yield reply
            finally:
                self.running -= 1

    async def ModelInfer(self, request, context):
        if self.unary is None:
            text = "ModelInfer RPC doesn't support models with decoupled transaction policy"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)
        self.requests.append(request)
        return await self.unary(request, context)

    async def ModelConfig(self, request, context):
        if request.name not in self.configs:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}'")
        return service_pb2.ModelConfigResponse(config=self.configs[request.name])

    async def ServerReady(self, request, context):
        return service_pb2.ServerReadyResponse(ready=self.ready)

    async def ModelReady(self, request, context):
        return service_pb2.ModelReadyResponse(ready=request.name in self.configs)

    async def ServerMetadata(self, request, context):
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")


def read_int32(request, name):
    """Read a one-element tensor of a request that reached the server."""
    for n, tensor in enumerate(request.inputs):
        if tensor.name == name:
            return int(np.frombuffer(request.raw_input_contents[n], np.int32)[0])
    raise KeyError(name)
