"""What the live proxy tells of its decisions, and what it hears from the engine."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.proxy.conftest import ask, infer_request, text_inputs
from tests.proxy.fake_triton import final_chunk, text_chunk
from trtkit.errors import InputError
from trtkit.proxy.admission import EngineReport
from trtkit.proxy.sensor import read_report

PAGE = b"""# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4875
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 6238
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
"""


def test_the_kv_gauges_are_read():
    assert read_report(PAGE) == EngineReport(1, 6238, 6239, 64)


@pytest.mark.parametrize(
    "page", [b"", PAGE.replace(b'"used"', b'"reused"'), PAGE + PAGE, PAGE.replace(b" 6238", b" many")]
)
def test_a_gauge_that_is_absent_doubled_or_no_number_is_no_report(page):
    assert read_report(page) is None


async def test_an_answer_tells_what_bound_it_and_can_be_explained_by_either_id(front):
    trailers = await trailers_of(front, request_id="mine")
    assert trailers["trtkit-constraint"] == "none"
    for request_id in ("mine", trailers["trtkit-request-id"]):
        record = json.loads(await front.scrape(f"/decisions/{request_id}"))
        assert (record["constraint"], record["reason"], record["backend"]) == ("none", None, 0)
        assert record["predicted_ttft_s"] is None
    assert await front.metric("decisions_total", constraint="none", bucket="2048") == 1


async def trailers_of(front, **request) -> dict[str, str]:
    async with grpc.aio.insecure_channel(front.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        message = service_pb2.ModelInferRequest.FromString(infer_request("ensemble", text_inputs("hello", 4)))
        message.id = request["request_id"]
        await call.write(message.SerializeToString())
        await call.done_writing()
        async for _ in call:
            pass
        return dict(await call.trailing_metadata())


async def test_the_engines_report_is_heard_and_its_silence_shows(fake, serve):
    pages = [PAGE]

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + pages[0])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        front = await serve(fake.address, engine_metrics=f"127.0.0.1:{port}")
        await front.until(0, "engine_report_suspect")
        pages[0] = b"nothing of the kind"
        await front.until(1, "engine_report_suspect", suspicion="missing")


async def test_a_metrics_address_that_is_none_is_refused(fake, serve):
    with pytest.raises(InputError, match="metrics address"):
        await serve(fake.address, engine_metrics="nowhere")


async def test_tenants_take_turns(fake, serve, spawn):
    order = []

    async def script(request, context):
        order.append(request.raw_input_contents[0][4:].decode())
        yield text_chunk(request)
        if order == ["first"]:
            await go.wait()
        yield final_chunk(request)

    fake.script, go = script, asyncio.Event()
    front = await serve(fake.address, slots=1)
    spawn(ask(front.address, "first"))
    await front.until(1, "inflight_requests")
    for n, tenant in enumerate(["flood"] * 5 + ["quiet"]):
        spawn(ask(front.address, f"{tenant}{n}", headers={"x-trtkit-tenant": tenant}))
        await front.until(n + 1, "queue_depth")
    go.set()
    await front.until(0, "queue_depth")
    await front.until(0, "inflight_requests")
    assert order.index("quiet5") <= 2


async def test_explain_renders_what_the_proxy_tells(front, trtkit):  # noqa: F811
    await ask(front.address, request_id="mine")
    where = f"127.0.0.1:{front.proxy.metrics_port}"
    code, out, _ = await asyncio.to_thread(trtkit, "explain", "mine", "--proxy", where)
    assert code == 0
    assert "sent to engine 0" in out
    assert "nothing held it back" in out
    assert (await asyncio.to_thread(trtkit, "explain", "other", "--proxy", where))[0] == 2
    assert (await asyncio.to_thread(trtkit, "explain", "mine", "--proxy", "127.0.0.1:1"))[0] == 3
