"""Several servers behind one proxy: where requests go, and what a server that fails does to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.proxy.conftest import BLS, CLASSES, LIMITS, ask, infer_request, text_inputs, timed
from tests.proxy.fake_triton import FakeTriton, final_chunk, text_chunk
from trtkit.contract.service import ServiceClass, Timeouts
from trtkit.errors import EnvironmentLacks
from trtkit.plan.types import EngineLimits, Zones
from trtkit.proxy.config import Endpoint, PoolConfig
from trtkit.triton.server import TritonServer

QUICK = {"probe_period_s": 0.1}
IMPATIENT = {**QUICK, "probe_timeout_s": 1.0}
"""For tests in which a server says nothing; a machine that pauses must not look like one."""
ZONES = Zones(10_000, 100_000, 4)
SHORT_LIMITS = EngineLimits(
    max_batch_size=4, max_input_len=50, max_seq_len=100, max_num_tokens=512, tokens_per_block=32
)


class Moody(FakeTriton):
    """Says of itself what the test wants, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.engine_ready = True
        self.mute = False

    async def ServerReady(self, request, context):
        if self.mute:
            await asyncio.sleep(60)
        return await super().ServerReady(request, context)

    async def ModelReady(self, request, context):
        return service_pb2.ModelReadyResponse(ready=self.engine_ready and request.name in self.configs)


@pytest.fixture
async def pair():
    async with Moody() as first, Moody() as second:
        yield first, second


@pytest.fixture
async def both(pair, serve):
    return await serve(*(each.address for each in pair), **QUICK)


async def trailers_of(front, text="hello", **metadata):
    """Send one request; return the trailing metadata of its status."""
    headers = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    async with grpc.aio.insecure_channel(front.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(metadata=headers)
        await call.write(infer_request(BLS, text_inputs(text)))
        await call.done_writing()
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
        return dict(await call.trailing_metadata())


async def asked(front):
    """Wait until every server has said how it is, so that nobody asks soon again."""
    await ask(front.address)
    await asyncio.gather(*(watch.ask() for watch in front.proxy._core.fleet._watches))


def until_stopped(fake):
    async def script(request, context):
        yield text_chunk(request)
        await fake.until_stopped(request)
        yield final_chunk(request)

    return script


async def test_requests_go_to_the_least_loaded_server_and_the_answer_names_it(pair, both, spawn):
    pair[0].script = until_stopped(pair[0])
    spawn(ask(both.address))
    await both.until(1, "zone_used", backend="0", zone="decode_slots")
    assert [(await trailers_of(both))["trtkit-backend"] for _ in range(3)] == ["1"] * 3
    assert (len(pair[0].requests), len(pair[1].requests)) == (1, 3)


async def test_a_session_goes_on_at_the_server_that_has_read_its_beginning(pair, both, spawn):
    pair[0].script = until_stopped(pair[0])
    busy = spawn(ask(both.address))
    await both.until(1, "zone_used", backend="0", zone="decode_slots")
    session = {"x_trtkit_session": "chat-7"}
    assert (await trailers_of(both, "first turn", **session))["trtkit-backend"] == "1"
    busy.cancel()
    await both.until(0, "inflight_requests")
    assert (await trailers_of(both, "another turn", **session))["trtkit-backend"] == "1"
    pair[0].script = pair[1].script
    assert (await trailers_of(both, "somebody else's"))["trtkit-backend"] == "0"


async def test_what_was_never_sent_to_a_server_that_is_away_goes_to_another(pair, serve):
    front = await serve(*(each.address for each in pair), probe_period_s=60)
    await asked(front)
    await pair[0].server.stop(0)
    for _ in range(4):
        assert len(await ask(front.address)) == 3
    assert await front.metric("redirected_requests_total", backend="0") == 1
    assert await front.metric("decisions_total") == 5
    assert await front.metric("requests_total", outcome="ok") == 5
    assert await front.metric("backend_up", backend="0") == 0
    assert await front.metric("backend_ejections_total", backend="0", health="unreachable") == 1
    await pair[0].start()
    await front.until(1, "backend_up", backend="0")
    assert (await trailers_of(front, "other words"))["trtkit-backend"] == "0"


async def test_where_no_server_can_be_reached_nothing_is_said_to_have_been_sent(pair, serve):
    front = await serve(*(each.address for each in pair), probe_period_s=60)
    await asked(front)
    for each in pair:
        await each.server.stop(0)
    trailers = await trailers_of(front)
    assert (trailers["trtkit-reason"], trailers["trtkit-constraint"]) == ("no_backend", "server")
    assert "trtkit-backend" not in trailers
    assert await front.metric("inflight_requests") == 0


async def test_what_a_server_may_have_begun_is_never_sent_again(pair, both):
    async def dies(request, context):
        asyncio.get_running_loop().call_soon(
            lambda: tasks.append(asyncio.ensure_future(pair[0].server.stop(0)))
        )
        await asyncio.sleep(60)
        yield text_chunk(request)

    tasks = []
    pair[0].script = dies
    with pytest.raises(grpc.aio.AioRpcError, match="upstream_error") as caught:
        await ask(both.address)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await both.metric("requests_total", outcome="failed") == 1
    assert (len(pair[0].requests), len(pair[1].requests)) == (1, 0)
    await both.until(0, "inflight_requests")


async def test_a_request_is_refused_only_when_no_server_is_left(pair, both, spawn):
    for each in pair:
        each.script = until_stopped(each)
    for _ in range(6):
        spawn(ask(both.address))
    await both.until(6, "inflight_requests")
    waiting = spawn(ask(both.address))
    await both.until(1, "queue_depth")
    pair[0].ready = pair[0].engine_ready = False
    await both.until(1, "backend_up")
    assert not waiting.done()
    pair[1].ready = pair[1].engine_ready = False
    with pytest.raises(grpc.aio.AioRpcError, match="no_backend") as caught:
        await timed(waiting)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    trailers = await trailers_of(both)
    assert (trailers["trtkit-reason"], trailers["trtkit-constraint"]) == ("no_backend", "server")
    assert "trtkit-backend" not in trailers
    async with triton.InferenceServerClient(both.address) as client:
        assert not await client.is_server_ready()
        pair[1].ready = pair[1].engine_ready = True
        assert await client.is_server_ready()
    await both.until(1, "backend_up", backend="1")
    # What ran on was left to its own ends.
    assert await both.metric("inflight_requests") == 6


async def test_a_server_that_takes_the_connection_and_says_nothing_gets_no_request(fake, serve):
    async def mute(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        front = await serve(f"127.0.0.1:{port}", fake.address, **IMPATIENT)
        assert len(await timed(ask(front.address))) == 3
        await front.until(0, "backend_up", backend="0")
        start_s = time.monotonic()
        assert len(await ask(front.address)) == 3
        assert time.monotonic() - start_s < 2


PACED = """
import asyncio
from tests.proxy.fake_triton import FakeTriton, final_chunk, text_chunk

async def paced(request, context):
    for n in range(200 if b"endless" in request.raw_input_contents[0] else 3):
        yield text_chunk(request, f"t{n}")
        await asyncio.sleep(0.02)
    yield final_chunk(request)

async def main():
    async with FakeTriton() as fake:
        fake.script = paced
        print(fake.address, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def other_process():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PACED), stdout=subprocess.PIPE, cwd=os.getcwd()
    )
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def test_a_server_that_was_stopped_hurts_nobody_else_and_is_taken_back(serve, spawn):
    classes = {**CLASSES, "standard": ServiceClass(priority=2, timeouts=Timeouts(inter_token_ms=1000.0))}
    async with other_process() as (process, frozen), FakeTriton() as healthy:
        front = await serve(
            *(frozen, healthy.address), classes=classes, stop_patience_s=0.5, linger_s=0.1, **IMPATIENT
        )
        await front.until(2, "backend_up")
        stuck = spawn(ask(front.address, "endless"))
        await front.until(1, "zone_used", backend="0", zone="decode_slots")
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError, match="inter_token_timeout") as caught:
            await timed(stuck)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await front.until(0, "backend_up", backend="0")
        assert await front.metric("backend_ejections_total", backend="0", health="silent") == 1
        took_s = []
        for _ in range(20):
            start_s = time.monotonic()
            assert len(await ask(front.address)) == 3
            took_s.append(time.monotonic() - start_s)
        assert max(took_s) < 2
        await front.until(0, "inflight_requests")
        process.send_signal(signal.SIGCONT)
        await front.until(1, "backend_up", backend="0")
        assert (await trailers_of(front, "other words"))["trtkit-backend"] == "0"


async def test_while_the_only_server_is_stuck_requests_are_refused_at_once(serve):
    async with other_process() as (process, frozen):
        front = await serve(frozen, **IMPATIENT)
        assert len(await ask(front.address)) == 3
        process.send_signal(signal.SIGSTOP)
        await front.until(0, "backend_up")
        start_s = time.monotonic()
        trailers = await trailers_of(front)
        assert (trailers["trtkit-reason"], trailers["trtkit-constraint"]) == ("no_backend", "server")
        assert time.monotonic() - start_s < 2


async def test_a_busy_server_that_streams_is_not_taken_for_stuck(serve, spawn):
    async def paced(request, context):
        for n in range(20):
            yield text_chunk(request, f"t{n}")
            await asyncio.sleep(0.05)
        yield final_chunk(request)

    async with Moody() as busy:
        busy.script = paced
        front = await serve(busy.address, probe_period_s=0.05, probe_timeout_s=0.2)
        await front.until(1, "backend_up")
        answer = spawn(ask(front.address))
        await front.until(1, "inflight_requests")
        busy.mute = True
        assert len(await timed(answer)) == 20
        assert await front.metric("backend_ejections_total") == 0
        await front.until(1, "backend_ejections_total", health="silent")


async def test_an_engine_is_sent_requests_while_another_model_of_its_server_loads(pair, both):
    pair[0].ready = pair[1].ready = False
    async with triton.InferenceServerClient(both.address) as client:
        assert not await client.is_server_ready()
    assert len(await ask(both.address)) == 3
    assert await both.metric("backend_up") == 2


async def test_what_is_about_one_server_is_refused_and_the_rest_goes_to_the_first_that_is_up(pair, both):
    async with triton.InferenceServerClient(both.address) as client:
        with pytest.raises(InferenceServerException, match="2 are behind this proxy") as caught:
            await client.load_model("x")
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
        await pair[0].server.stop(0)
        await both.until(0, "backend_up", backend="0")
        assert (await client.get_server_metadata()).version == "2.51.0"


@pytest.fixture
async def pools(pair, serve):
    """Prompts of 41 tokens and more have a server of their own, with larger limits."""
    standard = PoolConfig(SHORT_LIMITS, ZONES, (Endpoint(pair[0].address),))
    long = PoolConfig(LIMITS, ZONES, (Endpoint(pair[1].address),), "long", 41)
    return await serve("127.0.0.1:1", pools=(standard, long), **QUICK)


async def test_prompts_go_to_the_pool_of_their_length_with_its_limits(pair, pools):
    assert (await trailers_of(pools, "a" * 40))["trtkit-backend"] == "0"
    assert (await trailers_of(pools, "a" * 41))["trtkit-backend"] == "1"
    assert (await trailers_of(pools, "a" * 200))["trtkit-backend"] == "1"
    with pytest.raises(grpc.aio.AioRpcError, match="the prompt has 201 tokens, the engine takes 200"):
        await ask(pools.address, "a" * 201)
    assert (len(pair[0].requests), len(pair[1].requests)) == (1, 2)


async def test_the_pool_of_longer_prompts_stands_in_for_one_that_has_no_server_left(pair, pools):
    await pair[0].server.stop(0)
    await pools.until(0, "backend_up", pool="standard")
    assert (await trailers_of(pools, "short"))["trtkit-backend"] == "1"
    await pair[0].start()
    await pools.until(1, "backend_up", pool="standard")
    await pair[1].server.stop(0)
    await pools.until(0, "backend_up", pool="long")
    with pytest.raises(grpc.aio.AioRpcError, match="no_backend"):
        await ask(pools.address, "a" * 41)
    assert len(await ask(pools.address, "short")) == 3


async def test_each_server_is_listened_to_on_its_own(pair, serve):
    endpoints = (Endpoint(pair[0].address), Endpoint(pair[1].address, "127.0.0.1:1"))
    front = await serve("127.0.0.1:1", pools=(PoolConfig(LIMITS, ZONES, endpoints),), **QUICK)
    await front.until(1, "engine_report_suspect", backend="1", suspicion="missing")
    assert await front.metric("engine_report_suspect", backend="0") == 0


async def test_a_real_triton_that_is_killed_costs_only_what_it_had_begun(tmp_path, serve):
    servers = []
    try:
        for n in range(2):
            repo = shutil.copytree(Path(__file__).parent / "repo", tmp_path / f"{n}" / "repo")
            servers.append(TritonServer(repo, log_file=tmp_path / f"{n}" / "log"))
    except EnvironmentLacks as lack:
        pytest.skip(str(lack))
    with servers[0], servers[1]:
        for server in servers:
            server.wait_ready(60, probe=lambda url, timeout_s: None)
        front = await serve(*(server.grpc_address for server in servers), slots=8, **QUICK)
        calls = [asyncio.create_task(ask(front.address, "tokens=40 step_ms=20")) for _ in range(8)]
        await front.until(lambda running: running >= 3, "zone_used", backend="0", zone="decode_slots")
        os.kill(servers[0]._pid, signal.SIGKILL)
        await front.until(0, "backend_up", backend="0")
        later = [await ask(front.address, "tokens=2 step_ms=1") for _ in range(5)]
        assert later == [["t0", "t1"]] * 5
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(len(each) == 40 for each in answers if isinstance(each, list)) >= 3
        for lost in (each for each in answers if not isinstance(each, list)):
            assert lost.code() is grpc.StatusCode.UNAVAILABLE
        await front.until(0, "inflight_requests")
