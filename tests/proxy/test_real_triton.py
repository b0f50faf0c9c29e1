"""The proxy in front of a real Triton whose model writes down what really reached it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as sync_triton
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from tests.proxy.conftest import BLS, CLASSES, ask, stream, text_inputs, timed
from trtkit.contract.service import ServiceClass, Timeouts
from trtkit.errors import EnvironmentLacks
from trtkit.triton.server import TritonServer


@dataclasses.dataclass
class Real:
    """A running Triton and its model's diary."""

    address: str
    diary: Path

    def events(self, *kinds, prompt="") -> list[dict]:
        lines = map(json.loads, self.diary.read_text().splitlines())
        return [line for line in lines if line["event"] in kinds and prompt in line["prompt"]]

    async def event(self, kind, prompt, within_s=20.0) -> dict:
        end_s = time.monotonic() + within_s
        while not (found := self.events(kind, prompt=prompt)):
            assert time.monotonic() < end_s, f"no {kind} of {prompt}"
            await asyncio.sleep(0.01)
        return found[-1]


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    repo = shutil.copytree(Path(__file__).parent / "repo", folder / "repo")
    try:
        server = TritonServer(repo, log_file=folder / "log")
    except EnvironmentLacks as lack:
        pytest.skip(str(lack))
    with server:
        server.wait_ready(60, probe=lambda url, timeout_s: None)
        yield Real(server.grpc_address, folder / "events.jsonl")


async def test_thirty_streams_arrive_whole_and_in_order(real, serve):
    front = await serve(real.address, slots=30)
    answers = await asyncio.gather(*(ask(front.address, "tokens=20 step_ms=5") for _ in range(30)))
    assert answers == [[f"t{n}" for n in range(20)]] * 30


async def test_one_slot_is_given_by_priority_and_in_order_of_arrival(real, serve, spawn):
    front = await serve(real.address, slots=1)
    first = spawn(ask(front.address, "tokens=500 step_ms=50 order=first"))
    await real.event("start", "order=first")
    calls = []
    for n, priority in enumerate([3] * 10 + [1] * 4):
        calls.append(spawn(ask(front.address, f"order={priority}-{n:02}", priority=priority)))
        await front.until(n + 1, "queue_depth")
    first.cancel()
    await timed(asyncio.gather(*calls))
    order = [
        each["prompt"] for each in real.events("start", prompt="order=") if "first" not in each["prompt"]
    ]
    assert order == [f"order=1-{n:02}" for n in range(10, 14)] + [f"order=3-{n:02}" for n in range(10)]


@pytest.mark.parametrize(
    "orders", ["tokens=500 step_ms=20", "tokens=1 first_ms=5000"], ids=["midway", "prefill"]
)
async def test_a_cancel_reaches_the_engine_at_once(real, serve, orders):
    front = await serve(real.address)
    prompt = f"{orders} case=cancel"
    call = asyncio.create_task(ask(front.address, prompt))
    started = await real.event("start", prompt)
    await asyncio.sleep(0.1)
    cancelled_s = time.monotonic()
    call.cancel()
    assert (await real.event("cancel", prompt))["at_s"] - cancelled_s < 0.2
    await front.until(0, "inflight_requests")
    assert started["id"].startswith("tk-")


CLIENT = """
import sys, time
import tritonclient.grpc as triton
from tests.proxy.conftest import text_inputs
client = triton.InferenceServerClient(sys.argv[1])
client.start_stream(lambda result, error: None)
client.async_stream_infer("tensorrt_llm_bls", text_inputs(sys.argv[2]))
time.sleep(60)
"""


async def test_a_client_that_is_killed_is_cancelled_and_others_are_not(real, serve, spawn):
    front = await serve(real.address)
    other = spawn(ask(front.address, "tokens=100 step_ms=10 case=other"))
    prompt = "tokens=500 step_ms=20 case=killed"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, front.address, prompt)
    await real.event("start", "case=killed")
    killed_s = time.monotonic()
    process.kill()
    await process.wait()
    assert (await real.event("cancel", "case=killed"))["at_s"] - killed_s < 0.3
    assert len(await timed(other)) == 100


async def test_a_sync_client_timeout_is_cancelled_and_called_a_deadline(real, serve):
    front = await serve(real.address)
    prompt = "tokens=500 step_ms=20 case=timeout"

    def use_sync_client():
        errors = []
        with sync_triton.InferenceServerClient(front.address) as client:
            client.start_stream(lambda result, error: errors.append(error), stream_timeout=0.5)
            client.async_stream_infer(BLS, text_inputs(prompt))
            client.stop_stream()
        return errors[-1]

    assert "deadline" in str(await asyncio.to_thread(use_sync_client)).lower()
    await real.event("cancel", prompt)
    await front.until(1, "requests_total", reason="deadline")


async def test_an_engine_that_ignores_the_cancel_keeps_its_slot_until_it_ends(real, serve, spawn):
    front = await serve(real.address, slots=1)
    deaf = "tokens=20 step_ms=50 ignore_cancel=1"
    call = spawn(ask(front.address, deaf))
    await real.event("start", deaf)
    call.cancel()
    await front.until(1, "cancelling_requests")
    await timed(ask(front.address, "case=next"))
    assert real.events("start", prompt="case=next")[0]["at_s"] >= real.events("end", prompt=deaf)[0]["at_s"]


async def test_a_stalled_stream_is_ended_cancelled_and_its_slot_freed(real, serve):
    classes = {**CLASSES, "standard": ServiceClass(priority=2, timeouts=Timeouts(inter_token_ms=300.0))}
    front = await serve(real.address, slots=1, classes=classes)
    with pytest.raises(grpc.aio.AioRpcError, match="inter_token_timeout"):
        await ask(front.address, "tokens=10 stall_after=3")
    await real.event("cancel", "stall_after=3")
    assert len(await timed(ask(front.address, "case=after-stall"))) == 3


async def test_a_long_answer_outlives_the_inter_token_limit(real, serve):
    classes = {**CLASSES, "standard": ServiceClass(priority=2, timeouts=Timeouts(inter_token_ms=300.0))}
    front = await serve(real.address, classes=classes)
    assert len(await ask(front.address, "tokens=30 step_ms=50")) == 30


async def test_tritons_own_errors_and_answers_pass(real, serve):
    front = await serve(real.address)
    async with triton.InferenceServerClient(front.address) as client:
        assert await client.is_server_ready()
        assert (await client.get_server_metadata()).name == "triton"
        with pytest.raises(InferenceServerException, match="decoupled transaction policy"):
            await client.infer(BLS, text_inputs("a"))
        with pytest.raises(InferenceServerException, match="unknown model"):
            await client.infer("nope", text_inputs("a"))
    replies = stream(front.address, {"model_name": "nope", "inputs": text_inputs("a")})
    assert "unknown model" in (await anext(replies))[1].message()
    with pytest.raises(grpc.aio.AioRpcError, match="unknown model") as caught:
        await ask(front.address, headers={"triton_grpc_error": "true"}, model_name="nope")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_where_nothing_listens_there_is_no_backend(serve):
    front = await serve("127.0.0.1:1")
    with pytest.raises(grpc.aio.AioRpcError, match="no_backend"):
        await timed(ask(front.address))
