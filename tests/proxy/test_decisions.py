"""What the live proxy tells of its decisions, and what it hears from the engine."""

from __future__ import annotations

import asyncio
import contextlib
import json

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from tritonclient.grpc import service_pb2

from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.proxy.conftest import ask, infer_request, text_inputs
from tests.proxy.fake_triton import final_chunk, text_chunk
from trtkit.contract.service import ServiceClass
from trtkit.errors import InputError
from trtkit.proxy.admission import Constraint, EngineReport, Reason, Record
from trtkit.proxy.decisions import DecisionLog
from trtkit.proxy.journal import open_journal
from trtkit.proxy.sensor import read_report
from trtkit.proxy.slo import Timeline

PAGE = b"""# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4875
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 6238
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
"""


def test_the_kv_gauges_are_read():
    assert read_report(PAGE) == EngineReport(1, 6238, 6239, 64)


REQUESTS = b"""nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 7
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 64
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
"""


def test_the_requests_in_the_engine_are_read_where_it_tells_of_them():
    assert read_report(PAGE + REQUESTS) == EngineReport(
        1, 6238, 6239, 64, active=7, waiting=2, most_requests=64
    )


@pytest.mark.parametrize(
    "page",
    [
        b"",
        PAGE.replace(b'"used"', b'"reused"'),
        PAGE + PAGE,
        PAGE.replace(b" 6238", b" many"),
        PAGE + REQUESTS + REQUESTS,
        PAGE + REQUESTS.replace(b"waiting", b"paused"),
    ],
)
def test_a_gauge_that_is_absent_doubled_or_no_number_is_no_report(page):
    assert read_report(page) is None


async def test_an_answer_tells_what_bound_it_and_can_be_explained_by_either_id(front):
    trailers = await trailers_of(front, request_id="mine")
    assert trailers["trtkit-constraint"] == "none"
    for request_id in ("mine", trailers["trtkit-request-id"]):
        record = json.loads(await front.scrape(f"/decisions/{request_id}"))
        assert (record["constraint"], record["reason"], record["backend"]) == ("none", "ok", 0)
        assert (record["outcome"], record["tokens"]) == ("ok", 3)
        assert record["predicted_ttft_s"] is None
    assert await front.metric("decisions_total", constraint="none", bucket="2048") == 1


async def trailers_of(front, *, request_id, text="hello", metadata=()) -> dict[str, str]:
    async with grpc.aio.insecure_channel(front.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(metadata=metadata)
        message = service_pb2.ModelInferRequest.FromString(infer_request("ensemble", text_inputs(text, 4)))
        message.id = request_id
        await call.write(message.SerializeToString())
        await call.done_writing()
        with contextlib.suppress(grpc.aio.AioRpcError):
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
    assert "sent to engine 0; ok (ok) after" in out
    assert "nothing held it back" in out
    assert (await asyncio.to_thread(trtkit, "explain", "other", "--proxy", where))[0] == 2
    assert (await asyncio.to_thread(trtkit, "explain", "mine", "--proxy", "127.0.0.1:1"))[0] == 3


async def test_what_waits_is_explained_by_what_binds_it_so_far(fake, until_stop, serve, spawn, trtkit):  # noqa: F811
    front = await serve(fake.address, slots=1)
    spawn(ask(front.address))
    await front.until(1, "inflight_requests")
    spawn(ask(front.address, request_id="mine"))
    await front.until(1, "queue_depth")
    record = json.loads(await front.scrape("/decisions/mine"))
    assert (record["outcome"], record["constraint"], record["measured"]) == ("waiting", "decode", 2)
    assert record["queue_s"] > 0
    where = f"127.0.0.1:{front.proxy.metrics_port}"
    _, out, _ = await asyncio.to_thread(trtkit, "explain", "mine", "--proxy", where)
    assert "outcome   waits" in out
    assert "running requests: 2 with it, 0.9 allowed" in out


async def test_what_was_refused_before_its_prompt_was_counted_is_explained_too(
    fake, until_stop, serve, spawn
):
    front = await serve(fake.address, slots=1, max_queue=1)
    spawn(ask(front.address))
    await front.until(1, "inflight_requests")
    spawn(ask(front.address))
    await front.until(1, "queue_depth")
    with pytest.raises(grpc.aio.AioRpcError, match=r"queue_full: the queue is full; .*: 1, 1 allowed"):
        await ask(front.address, request_id="third")
    with pytest.raises(grpc.aio.AioRpcError, match="unknown_class"):
        await ask(front.address, request_id="fourth", headers={"x-trtkit-class": "gold"})
    third, fourth = [json.loads(await front.scrape(f"/decisions/{name}")) for name in ("third", "fourth")]
    assert (third["constraint"], third["measured"], third["outcome"]) == ("queue", 1, "refused")
    assert (fourth["constraint"], fourth["class_name"], fourth["outcome"]) == (
        "request",
        "unknown",
        "invalid",
    )
    assert await front.metric("decisions_total", constraint="queue", bucket="unsized") == 1
    assert await front.metric("decisions_total") == 3


async def test_a_record_tells_how_its_request_ended(fake, until_stop, serve, trtkit):  # noqa: F811
    front = await serve(fake.address, classes={"brief": ServiceClass(priority=1, deadline_ms=100.0)})
    with pytest.raises(grpc.aio.AioRpcError, match="deadline"):
        await ask(front.address, request_id="mine")
    record = json.loads(await front.scrape("/decisions/mine"))
    assert (record["reason"], record["outcome"], record["backend"]) == ("deadline", "timed_out", 0)
    where = f"127.0.0.1:{front.proxy.metrics_port}"
    _, out, _ = await asyncio.to_thread(trtkit, "explain", "mine", "--proxy", where)
    assert "sent to engine 0; timed_out (deadline) after" in out


async def test_every_refusal_says_why_and_when_to_come_back_as_google_rpc_does(
    fake, until_stop, serve, spawn
):
    front = await serve(fake.address, slots=1, max_queue=1)
    spawn(ask(front.address))
    await front.until(1, "inflight_requests")
    spawn(ask(front.address))
    await front.until(1, "queue_depth")
    trailers = await trailers_of(front, request_id="third")
    assert trailers["trtkit-request-id"].startswith("tk-")
    assert trailers["trtkit-constraint"] == "queue"
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert (status.code, status.details[0].Unpack(info), status.details[1].Unpack(retry)) == (8, True, True)
    assert (info.reason, info.domain, info.metadata["class"]) == ("QUEUE_FULL", "trtkit", "standard")
    assert retry.retry_delay.ToMilliseconds() == int(trailers["grpc-retry-pushback-ms"])


async def test_what_never_works_names_no_time_to_come_back(front):
    trailers = await trailers_of(front, request_id="long", text="a" * 1000)
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, len(status.details)) == (3, 1)
    assert trailers["grpc-retry-pushback-ms"] == "-1"


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        (
            [("x-trtkit-class", "interactive"), ("x-trtkit-class", "batch")],
            "x-trtkit-class contradicts itself",
        ),
        ([("x-trtkit-tenant", "ann"), ("x-trtkit-tenant", "bob")], "x-trtkit-tenant contradicts itself"),
        ([("x-trtkit-class", "batch"), ("x-trtkit-class", "batch")], None),
    ],
)
async def test_headers_that_contradict_themselves_are_refused(front, headers, complaint):
    trailers = await trailers_of(front, request_id="mine", metadata=headers)
    assert trailers["trtkit-reason"] == ("invalid_input" if complaint else "ok")
    if complaint:
        details = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
        assert complaint in details.message


def test_the_log_is_json_and_waits_for_no_reader(capsys):
    with open_journal("info"):
        log = DecisionLog(lambda record: None)
        record = RECORD
        log.note(record, "mine")
        log.close("tk-1", Reason.DEADLINE, Timeline(0.0, ended_s=2.5))
        log.note(record._replace(id="tk-2"), "")
        log.close("tk-2", Reason.OK, Timeline(0.0, ended_s=1.0))
    (line,) = capsys.readouterr().err.splitlines()
    assert {"level": "info", "id": "tk-1", "outcome": "timed_out", "total_s": 2.5}.items() <= json.loads(
        line
    ).items()


RECORD = Record(
    *("tk-1", "gold", "", "2048", 5, 0.0, 0, float("inf")),
    *(Constraint.NONE, 0.0, 0.0),
)
