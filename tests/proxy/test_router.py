"""Everything beside streams: unary inference, pass-through, health, drain, a backend that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error

import grpc
import numpy as np
import pytest
import tritonclient.grpc as sync_triton
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.proxy.conftest import BLS, ask, infer_request, stream, text_inputs, timed, to_inputs
from tests.proxy.fake_triton import FakeTriton, final_chunk, model_config, read_int32, text_chunk
from trtkit.errors import InputError, StartError
from trtkit.proxy.client import PriorityPlugin


async def whole_answer(request, context):
    return text_chunk(request, "whole").infer_response


async def echo(request, context):
    response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.outputs.add(name="OUT", datatype="INT32", shape=list(request.inputs[0].shape))
    response.raw_output_contents.append(request.raw_input_contents[0])
    return response


@pytest.fixture
def whole(fake):
    """A Triton whose text model is not decoupled."""
    fake.configs[BLS] = model_config(
        BLS, {"text_input": ("STRING", False), "max_tokens": ("INT32", False)}, decoupled=False
    )
    fake.unary = whole_answer


async def test_unary_inference_is_admitted_counted_and_answered_under_the_clients_id(front, fake, whole):
    async with triton.InferenceServerClient(front.address) as client:
        result = await client.infer(BLS, text_inputs("hi", 5000, stream=None), request_id="mine", priority=1)
    assert result.as_numpy("text_output")[0, 0] == b"whole"
    assert result.get_response().id == "mine"
    assert read_int32(fake.requests[0], "max_tokens") == 254
    assert "priority" not in fake.requests[0].parameters
    assert await front.metric("requests_total", class_="interactive", reason="ok") == 1


async def test_a_unary_refusal_has_code_text_and_trailers(front, whole):
    request = infer_request(BLS, text_inputs("x" * 300, stream=None))
    async with grpc.aio.insecure_channel(front.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="too_long") as caught:
            await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    trailers = dict(caught.value.trailing_metadata())
    assert trailers["grpc-retry-pushback-ms"] == "-1"


async def test_a_unary_deadline_frees_the_slot_when_the_server_has_ended(front, fake, whole):
    async def slow(request, context):
        await fake.until_stopped(request)
        return await whole_answer(request, context)

    fake.unary = slow
    async with triton.InferenceServerClient(front.address) as client:
        with pytest.raises(InferenceServerException, match=r"(?i)deadline"):
            await client.infer(BLS, text_inputs("hi", stream=None), client_timeout=0.2)
    await front.until(0, "inflight_requests")
    assert await front.metric("requests_total", reason="deadline") == 1


async def test_unary_inference_on_a_decoupled_model_is_tritons_to_answer(front):
    async with triton.InferenceServerClient(front.address) as client:
        with pytest.raises(InferenceServerException, match="doesn't support models with decoupled") as caught:
            await client.infer(BLS, text_inputs("hi"))
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


async def test_64_mb_pass_both_ways_untouched(front, fake):
    fake.unary = echo
    values = np.arange(16 << 20, dtype=np.int32)
    async with triton.InferenceServerClient(front.address) as client:
        result = await client.infer("embedder", to_inputs({"IN": values}), request_id="mine")
    assert fake.requests[0].id == "mine"
    assert np.array_equal(result.as_numpy("OUT"), values)


async def test_other_models_share_one_stream_that_keeps_their_order(front, fake):
    async def first_is_slow(request, context):
        await asyncio.sleep(0.1 if request.id == "1" else 0)
        yield text_chunk(request, final=True)

    fake.script = first_is_slow
    requests = [
        {"model_name": "sequence", "inputs": text_inputs("a"), "request_id": str(n)} for n in range(1, 4)
    ]
    ids = [result.get_response().id async for result, _ in stream(front.address, *requests)]
    assert ids == ["1", "2", "3"]
    assert [request.id for request in fake.requests] == ids


async def test_other_rpcs_and_their_errors_pass(front):
    async with triton.InferenceServerClient(front.address) as client:
        assert (await client.get_server_metadata()).version == "2.51.0"
        assert (await client.get_model_config(BLS)).config.name == BLS
        with pytest.raises(InferenceServerException, match="unknown model: 'nope'") as caught:
            await client.get_model_config("nope")
    assert caught.value.status() == "StatusCode.NOT_FOUND"


async def test_an_unknown_service_is_unimplemented(front):
    async with grpc.aio.insecure_channel(front.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/other.Service/Call")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def health(front, service=b""):
    async with grpc.aio.insecure_channel(front.address) as channel:
        request = b"\x0a" + bytes([len(service)]) + service if service else b""
        return await channel.unary_unary("/grpc.health.v1.Health/Check")(request)


async def test_readiness_is_tritons_and_liveness_the_proxys_own(front, fake):
    async with triton.InferenceServerClient(front.address) as client:
        assert await client.is_server_ready()
        assert await client.is_model_ready(BLS)
        assert await health(front, b"inference.GRPCInferenceService") == b"\x08\x01"
        fake.ready = False
        assert await client.is_server_live()
        assert not await client.is_server_ready()
        assert not await client.is_model_ready(BLS)
    assert await health(front, b"inference.GRPCInferenceService") == b"\x08\x02"
    assert await health(front) == b"\x08\x01"
    assert await front.scrape("/livez") == "live\n"
    with pytest.raises(urllib.error.HTTPError, match="503"):
        await front.scrape("/readyz")


async def test_a_backend_that_is_down_is_unavailable_and_found_again(fake, serve):
    front = await serve(fake.address)
    await ask(front.address)
    await fake.server.stop(0)
    with pytest.raises(grpc.aio.AioRpcError, match="no_backend") as caught:
        await ask(front.address)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert int(dict(caught.value.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    async with triton.InferenceServerClient(front.address) as client:
        assert await client.is_server_live()
        assert not await client.is_server_ready()
        await fake.start()
        end_s = time.monotonic() + 5
        while not await client.is_server_ready():
            assert time.monotonic() < end_s
    assert len(await ask(front.address)) == 3
    assert await front.metric("inflight_requests") == 0


async def test_a_server_that_dies_mid_stream_is_named_and_leaks_nothing(front, fake):
    async def endless(request, context):
        while True:
            yield text_chunk(request)
            await asyncio.sleep(0.01)

    fake.script = endless
    replies = stream(front.address, {"inputs": text_inputs("a")})
    await anext(replies)
    await fake.server.stop(0)
    with pytest.raises(grpc.aio.AioRpcError, match="upstream_error") as caught:
        [pair async for pair in replies]
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await front.until(0, "inflight_requests")
    await fake.start()


async def test_drain_refuses_what_waits_and_lets_what_runs_finish(fake, serve, spawn):
    go_on = asyncio.Event()

    async def until_told(request, context):
        yield text_chunk(request)
        await go_on.wait()
        yield final_chunk(request)

    fake.script = until_told
    front = await serve(fake.address, slots=1)
    running = spawn(ask(front.address))
    await front.until(1, "inflight_requests")
    waiting = spawn(ask(front.address))
    await front.until(1, "queue_depth")
    draining = spawn(front.proxy.drain(5))
    with pytest.raises(grpc.aio.AioRpcError, match="draining") as caught:
        await waiting
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError, match="draining"):
        await ask(front.address)
    assert await health(front, b"inference.GRPCInferenceService") == b"\x08\x02"
    go_on.set()
    assert await running == ["tok"]
    await timed(draining)


async def test_the_grace_of_a_drain_is_bounded(fake, serve):
    async def endless(request, context):
        yield text_chunk(request)
        await asyncio.sleep(60)

    fake.script = endless
    front = await serve(fake.address)
    replies = stream(front.address, {"inputs": text_inputs("a")})
    await anext(replies)
    await timed(front.proxy.drain(0.1))
    with pytest.raises(grpc.aio.AioRpcError, match="draining"):
        await timed(anext(replies))


async def test_a_drain_ends_streams_that_are_only_kept_open(fake, serve):
    front = await serve(fake.address)
    async with grpc.aio.insecure_channel(front.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        await call.write(infer_request(BLS, text_inputs("a")))
        for _ in range(3):
            await call.read()
        await front.until(0, "inflight_requests")
        await timed(front.proxy.drain(0.1))
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(await call.trailing_metadata())["trtkit-reason"] == "draining"


async def test_the_plugin_names_class_and_tenant(front, fake):
    def use_sync_client():
        with sync_triton.InferenceServerClient(front.address) as client:
            client.register_plugin(PriorityPlugin("interactive", tenant="search"))
            fake.unary = whole_answer
            client.infer(BLS, text_inputs("hi", stream=None))

    fake.configs[BLS].model_transaction_policy.decoupled = False
    await asyncio.to_thread(use_sync_client)
    assert await front.metric("requests_total", class_="interactive") == 1


async def test_a_taken_port_is_a_start_error(front, serve, fake):
    with pytest.raises(StartError, match="cannot listen"):
        await serve(fake.address, grpc_port=front.proxy.grpc_port)


@pytest.mark.parametrize(
    "upstream", ["garbage", "127.0.0.1:99999", "http://127.0.0.1:1", "", "host:0", "a b:1"]
)
async def test_an_upstream_that_is_no_address_is_an_input_error(serve, upstream):
    with pytest.raises(InputError, match="is no address"):
        await serve(upstream)


async def test_a_file_that_is_no_tokenizer_is_an_input_error(serve, fake, tmp_path):
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(InputError, match="cannot load the tokenizer"):
        await serve(fake.address, tokenizer=broken)


RUN = """
import sys
from tests.proxy.conftest import CLASSES, LIMITS
from trtkit.contract.admission import Admission
from trtkit.plan.types import Zones
from trtkit.proxy.config import Endpoint, PoolConfig, ProxyConfig
from trtkit.proxy.server import run
pool = PoolConfig(LIMITS, Zones(9999, 9999, 4), (Endpoint(sys.argv[1]),))
config = ProxyConfig(CLASSES, "standard", Admission(), (pool,))
run(config, lambda proxy: print(proxy.grpc_port, flush=True))
print("stopped")
"""


@pytest.mark.parametrize("signals", [1, 2])
async def test_the_first_signal_drains_and_the_second_forces(signals):
    async def endless(request, context):
        yield text_chunk(request)
        await asyncio.sleep(1.5 if signals == 1 else 60)
        yield final_chunk(request)

    async with FakeTriton() as fake:
        fake.script = endless
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RUN, fake.address), stdout=subprocess.PIPE, cwd=os.getcwd()
        )
        port = int(await process.stdout.readline())
        replies = stream(f"127.0.0.1:{port}", {"inputs": text_inputs("a")})
        await anext(replies)
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
        ends_early = pytest.raises(grpc.aio.AioRpcError, match="draining")
        with ends_early if signals == 2 else contextlib.nullcontext():
            assert [error async for _, error in replies] == []
        output, _ = await timed(process.communicate())
    assert output == b"stopped\n"
    assert process.returncode == 0
