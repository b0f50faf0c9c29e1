import asyncio

import grpc
import pytest

from tests.proxy.fake_triton import final_chunk, model_config, read_int32, text_chunk
from trtkit.bench.capacity import Level, measure_capacity, saturate
from trtkit.bench.load import Target, fire_at, keep_busy
from trtkit.bench.schedule import Shot
from trtkit.contract.service import ServiceClass
from trtkit.conventions import CLASS_HEADER, TENANT_HEADER
from trtkit.errors import StageError, StartError
from trtkit.proxy.admission import Outcome

CLASSES = {"a": ServiceClass(priority=1, ttft_ms=2000.0), "b": ServiceClass(priority=2)}
SHOT = Shot(0.0, "a", "ask", 3, prompt_tokens=3, tenant="t1")


@pytest.fixture
async def target(fake):
    async with Target(fake.address) as target:
        yield target


async def test_an_answer_is_timed_and_counted(target, fake):
    sample = await target.ask(SHOT)
    assert (sample.outcome, sample.kind, sample.tokens, len(sample.gaps_s)) == ("ok", Outcome.OK, 3, 2)
    assert 0 < sample.ttft_s <= sample.last_s <= sample.ended_s
    assert (sample.proxied, sample.dispatched_at_s) == (False, None)
    assert {CLASS_HEADER: "a", TENANT_HEADER: "t1"}.items() <= fake.metadata[0].items()


async def test_a_proxy_tells_how_long_it_queued(fake, serve):
    front = await serve(fake.address, classes=CLASSES)
    async with Target(front.address) as target:
        sample = await target.ask(SHOT)
    assert (sample.outcome, sample.proxied) == ("ok", True)
    assert 0 <= sample.dispatched_at_s < sample.ttft_s + 0.01


async def test_a_refusal_is_known_by_the_proxys_reason(fake, serve):
    over = asyncio.Event()

    async def script(request, context):
        yield text_chunk(request)
        await over.wait()
        yield final_chunk(request)

    fake.script = script
    front = await serve(fake.address, classes=CLASSES, slots=1, max_queue=1)
    async with Target(front.address) as target:
        before = [asyncio.create_task(target.ask(SHOT)) for _ in range(2)]
        await front.until(1, "queue_depth", class_="a")
        sample = await target.ask(SHOT)
        over.set()
        assert [each.outcome for each in await asyncio.gather(*before)] == ["ok", "ok"]
    assert (sample.outcome, sample.kind, sample.tokens) == ("queue_full", Outcome.REFUSED, 0)


async def test_an_error_of_triton_is_a_failure_in_its_words(target, fake):
    async def script(request, context):
        reply = final_chunk(request)
        reply.error_message = "out of memory"
        yield reply

    fake.script = script
    sample = await target.ask(SHOT)
    assert (sample.outcome, sample.kind) == ("out of memory", Outcome.FAILED)


@pytest.mark.parametrize(("answer", "outcome"), [(["a"], "truncated_stream"), ([], "empty_answer")])
async def test_an_answer_that_is_not_whole_is_a_failure(target, fake, answer, outcome):
    async def script(request, context):
        for text in answer:
            yield text_chunk(request, text)
        if not answer:
            yield final_chunk(request)

    fake.script = script
    sample = await target.ask(SHOT)
    assert (sample.outcome, sample.kind) == (outcome, Outcome.FAILED)


@pytest.mark.parametrize("after", [0, 2])
async def test_a_client_can_leave(target, fake, after):
    gone = asyncio.Event()

    async def script(request, context):
        try:
            for n in range(after):
                yield text_chunk(request, f"t{n}")
            await asyncio.sleep(10)
        finally:
            gone.set()

    fake.script = script
    sample = await target.ask(Shot(0.0, "a", "ask", 9, cancel_after_tokens=after))
    assert (sample.outcome, sample.kind, sample.tokens) == ("client_cancelled", Outcome.CANCELLED, after)
    await asyncio.wait_for(gone.wait(), 3)


async def test_what_the_server_cancels_is_no_clients_doing(target, fake):
    async def script(request, context):
        yield text_chunk(request)
        await context.abort(grpc.StatusCode.CANCELLED, "client_cancelled: cancelled by the client")

    fake.script = script
    assert (await target.ask(SHOT)).kind is Outcome.FAILED


async def test_the_clients_deadline_ends_a_call(target, fake):
    async def script(request, context):
        yield text_chunk(request)
        await asyncio.sleep(10)

    fake.script = script
    sample = await target.ask(Shot(0.0, "a", "ask", 9, deadline_s=0.2))
    assert (sample.outcome, sample.kind) == ("deadline", Outcome.TIMED_OUT)


async def test_a_model_that_can_is_told_not_to_stop_early(fake):
    inputs = {"text_input": ("STRING", False), "end_id": ("INT32", True)}
    fake.configs["tensorrt_llm_bls"] = model_config("tensorrt_llm_bls", inputs)
    async with Target(fake.address) as target:
        await target.ask(Shot(0.0, "a", "ask", 3, whole_answer=True))
    assert read_int32(fake.requests[0], "end_id") == -1


async def test_a_target_that_serves_something_else_is_named():
    with pytest.raises(StartError, match=r"127\.0\.0\.1:1 does not serve 'tensorrt_llm_bls'"):
        async with Target("127.0.0.1:1"):
            pass


async def test_the_loop_is_open(target, fake):
    """Nobody waits for an earlier answer."""

    async def script(request, context):
        await asyncio.sleep(0.5)
        yield text_chunk(request)
        yield final_chunk(request)

    fake.script = script
    samples = []
    await fire_at(target, [Shot(0.05 * n, "a", "ask", 3) for n in range(6)], samples)
    assert samples[-1].at_s < 0.5
    assert all(0 <= each.lag_s < 0.2 for each in samples)


async def test_capacity_is_the_rate_that_more_requests_do_not_raise(target, fake):
    slots = asyncio.Semaphore(8)

    async def script(request, context):
        async with slots:
            await asyncio.sleep(0.05)
            yield text_chunk(request)
            yield final_chunk(request)

    fake.script = script
    capacity = await measure_capacity(target, iter([SHOT] * 10_000), 0.6)
    assert capacity.rate_per_s == pytest.approx(8 / 0.05, rel=0.35)
    assert [level.workers for level in capacity.levels][:2] == [8, 16]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((64.6, 68.7, 84.6, 98.0, 76.0, 77.1, 78.0), 79.9),  # what was lucky once does not count
        ((50.0, 98.0, 60.0, 55.0, 97.0), 97.5),  # worse with more under way
        ((64.0, 98.0, 80.0, 85.0, 70.0, 84.0), 83.0),  # once its best is gone, not yet saturated
        ((50.0, 100.0, 104.0, 96.0), 100.0),
        ((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), None),
    ],
)
async def test_capacity_is_the_plateau_and_not_its_luckiest_level(rates, expected):
    drawn = iter(rates)

    async def measure(workers):
        return Level(workers, next(drawn), 100, 0)

    found = await saturate(measure)
    assert next(drawn, None) is None
    assert (found and found.rate_per_s) == (expected and pytest.approx(expected, abs=0.05))


async def test_a_target_that_refuses_has_no_capacity_to_measure(target, fake):
    async def script(request, context):
        reply = final_chunk(request)
        reply.error_message = "[RESOURCE_EXHAUSTED] queue_full: full"
        yield reply

    fake.script = script
    with pytest.raises(StageError, match="not answered") as caught:
        await measure_capacity(target, iter([SHOT] * 1000), 0.1)
    assert "--capacity-target" in caught.value.hint


async def test_a_closed_loop_stops_when_the_shots_run_out(target):
    spell = await keep_busy(target, iter([SHOT] * 5), 2, 60.0, 60)
    assert len(spell.done) == 5
