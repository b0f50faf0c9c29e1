"""How requests end early: time limits, cancels and clients that do not read."""

from __future__ import annotations

import asyncio
import queue
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as sync_triton

from tests.proxy.conftest import BLS, CLASSES, ask, infer_request, text_inputs, timed, token_inputs
from tests.proxy.fake_triton import final_chunk, text_chunk, three_tokens
from trtkit.contract.service import ServiceClass, Timeouts
from trtkit.proxy.admission import Reason
from trtkit.proxy.ending import Caller


async def stalls(request, context):
    yield text_chunk(request)
    await asyncio.sleep(60)
    yield final_chunk(request)


def with_timeouts(**limits):
    return {**CLASSES, "standard": ServiceClass(priority=2, timeouts=Timeouts(**limits))}


async def test_a_stalled_stream_ends_by_the_inter_token_limit_and_is_stopped(fake, serve, until_stop):
    front = await serve(fake.address, classes=with_timeouts(inter_token_ms=100.0))
    with pytest.raises(grpc.aio.AioRpcError, match="inter_token_timeout"):
        await ask(front.address)
    await front.until(0, "inflight_requests")
    assert fake.stopped == {fake.requests[0].id}


async def test_the_first_token_has_its_own_limit(fake, serve):
    async def silent(request, context):
        await fake.until_stopped(request)
        yield final_chunk(request)

    fake.script = silent
    front = await serve(fake.address, classes=with_timeouts(first_token_ms=100.0))
    with pytest.raises(grpc.aio.AioRpcError, match="first_token_timeout") as caught:
        await ask(front.address)
    assert caught.value.code().name == "DEADLINE_EXCEEDED"


async def test_tritons_timeout_parameter_counts_in_microseconds(front, fake, until_stop):
    with pytest.raises(grpc.aio.AioRpcError, match="deadline"):
        await timed(ask(front.address, timeout=150_000))


async def test_a_client_that_does_not_read_holds_nothing_of_the_engine(fake, serve):
    """Its messages wait for it in the proxy; the engine's slot goes to the next."""
    large = "x" * 20_000

    async def burst(request, context):
        for _ in range(100):
            yield text_chunk(request, large)
        yield final_chunk(request)

    fake.script = burst
    front = await serve(fake.address, slots=1, classes=with_timeouts(inter_token_ms=300.0))
    async with grpc.aio.insecure_channel(front.address, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        await call.write(infer_request(BLS, text_inputs("a")))
        await call.done_writing()
        await front.until(1, "requests_total", reason="ok")
        await front.until(0, "inflight_requests")
        fake.script = three_tokens
        assert len(await timed(ask(front.address))) == 3
        assert len([data async for data in call]) == 100


async def test_a_client_that_lets_answers_pile_up_is_cut_off(fake, serve):
    async def endless(request, context):
        while request.id not in fake.stopped:
            yield text_chunk(request, "x" * 100_000)
        yield final_chunk(request)

    fake.script = endless
    front = await serve(fake.address)
    async with grpc.aio.insecure_channel(front.address, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        await call.write(infer_request(BLS, text_inputs("a")))
        await call.done_writing()
        await front.until(1, "requests_total", reason="slow_reader")
        await front.until(0, "inflight_requests")
        with pytest.raises(grpc.aio.AioRpcError, match="slow_reader"):
            [data async for data in call]


async def test_a_stop_without_an_id_stops_nobody(front, fake, until_stop, spawn):
    waiting = spawn(ask(front.address))
    await front.until(1, "inflight_requests")
    stop = [*token_inputs([1])[:3], sync_triton.InferInput("stop", [1, 1], "BOOL")]
    stop[-1].set_data_from_numpy(np.array([[True]]))
    with pytest.raises(grpc.aio.AioRpcError, match="give the request id"):
        await ask(front.address, model_name="tensorrt_llm", inputs=stop)
    assert not waiting.done()


async def test_who_does_not_stream_and_is_refused_has_no_first_token_to_miss(fake, serve, until_stop, spawn):
    promise = {"standard": ServiceClass(priority=1, ttft_ms=60_000.0)}
    front = await serve(fake.address, slots=1, max_queue=1, classes=promise)
    for _ in range(2):
        spawn(ask(front.address))
    await front.until(1, "queue_depth")
    for stream in (False, True):
        with pytest.raises(grpc.aio.AioRpcError, match="queue_full"):
            await ask(front.address, inputs=text_inputs("a", stream=stream))
        assert await front.metric("slo_eligible_total", dimension="ttft") == stream
    assert await front.metric("slo_excluded_total", outcome="refused") == 1


async def test_a_queue_limit_fires_on_time_while_the_slot_is_busy(fake, serve, until_stop, spawn):
    front = await serve(fake.address, slots=1, classes=with_timeouts(queue_ms=500.0, inter_token_ms=None))
    spawn(ask(front.address, timeout_s=5))
    await front.until(1, "inflight_requests")
    start = asyncio.get_running_loop().time()
    with pytest.raises(grpc.aio.AioRpcError, match="queue_timeout"):
        await ask(front.address)
    assert 0.48 < asyncio.get_running_loop().time() - start < 0.75
    assert len(fake.requests) == 1


async def test_a_client_that_goes_away_stops_the_engine_and_frees_the_slot(front, fake, until_stop, spawn):
    call = spawn(ask(front.address))
    await front.until(1, "inflight_requests", class_="standard")
    call.cancel()
    await front.until(0, "inflight_requests")
    assert fake.stopped == {fake.requests[0].id}
    assert await front.metric("requests_total", reason="client_cancelled") == 1
    assert fake.running == 0


@pytest.mark.parametrize(
    ("after_s", "reason"),
    [
        (1.0, Reason.CLIENT_CANCELLED),
        (9.7, Reason.CLIENT_CANCELLED),
        (9.9, Reason.DEADLINE),
        (10.0, Reason.DEADLINE),
        (10.2, Reason.DEADLINE),
    ],
)
def test_a_client_whose_own_deadline_came_first_did_not_leave(after_s, reason):
    """Its clock is ahead of the proxy's by the way of its request, so its reset often comes first."""
    caller = Caller((), arrival_s=100.0, deadline_s=110.0, grpc_errors=False)
    assert caller.why_left(100.0 + after_s) is reason


async def test_a_deadline_of_the_client_is_counted_as_one(front, fake, until_stop):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(front.address, timeout_s=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await front.until(1, "requests_total", reason="deadline")


async def test_a_cancel_in_the_queue_never_reaches_the_server(fake, serve, until_stop, spawn):
    front = await serve(fake.address, slots=1)
    spawn(ask(front.address))
    await front.until(1, "inflight_requests")
    second = spawn(ask(front.address))
    await front.until(1, "queue_depth")
    second.cancel()
    await front.until(0, "queue_depth")
    assert len(fake.requests) == 1


async def test_an_engine_that_ignores_the_cancel_keeps_its_slot_and_that_shows(fake, serve, spawn):
    gate = asyncio.Event()

    async def deaf(request, context):
        yield text_chunk(request)
        await gate.wait()
        yield final_chunk(request)

    fake.script = deaf
    front = await serve(fake.address, slots=1)
    call = spawn(ask(front.address))
    await front.until(1, "inflight_requests")
    call.cancel()
    await front.until(1, "cancelling_requests", class_="standard")
    waiting = spawn(ask(front.address))
    await front.until(1, "queue_depth")
    assert len(fake.requests) == 1
    gate.set()
    assert len(await timed(waiting)) == 1
    await front.until(0, "cancelling_requests")


async def test_an_engine_that_cannot_be_stopped_gets_its_call_cancelled(front, fake, spawn):
    del fake.configs["tensorrt_llm"].input[-1]
    fake.script = stalls
    call = spawn(ask(front.address))
    await front.until(1, "inflight_requests")
    call.cancel()
    await front.until(0, "inflight_requests")
    assert fake.running == 0


async def test_an_engine_that_tells_nothing_keeps_its_slot_for_as_long_as_the_rest_would_take(
    front, fake, spawn
):
    del fake.configs["tensorrt_llm"].input[-1]  # no `stop`

    async def paced(request, context):
        for n in range(16):
            yield text_chunk(request, f"t{n}")
            await asyncio.sleep(0.05)

    fake.script = paced
    call = spawn(ask(front.address, max_tokens=16))
    await front.until(lambda tokens: fake.running and tokens == 1, "inflight_requests")
    await asyncio.sleep(0.2)  # four or five of the sixteen tokens at the pace of the engine
    call.cancel()
    cancelled_s = time.monotonic()
    await front.until(1, "cancelling_requests")
    await front.until(0, "inflight_requests")
    assert 0.3 < time.monotonic() - cancelled_s < 5
    assert fake.running == 0


async def test_cancelling_one_request_of_a_stream_by_stop_leaves_the_others(front, until_stop):
    stop = [*token_inputs([1])[:3], sync_triton.InferInput("stop", [1, 1], "BOOL")]
    stop[-1].set_data_from_numpy(np.array([[True]]))

    def use_sync_client():
        replies = queue.Queue()
        with sync_triton.InferenceServerClient(front.address) as client:
            client.start_stream(lambda result, error: replies.put((result, error)))
            for name in ("keep", "drop"):
                client.async_stream_infer(BLS, text_inputs(name), request_id=name)
            started = {replies.get(timeout=5)[0].get_response().id for _ in range(2)}
            client.async_stream_infer("tensorrt_llm", stop, request_id="drop")
            _, error = replies.get(timeout=5)
            left = asyncio.run_coroutine_threadsafe(front.until(1, "inflight_requests"), loop)
            left.result(timeout=5)
            client.stop_stream(cancel_requests=True)
            return started, error.message()

    loop = asyncio.get_running_loop()
    started, message = await asyncio.to_thread(use_sync_client)
    assert started == {"keep", "drop"}
    assert message.startswith("[CANCELLED] client_cancelled")
    await front.until(0, "inflight_requests")
