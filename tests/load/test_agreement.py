"""The load generator and the simulator on one engine: what is foreseen is what is then measured."""

import asyncio

import pytest

from tests.proxy.fake_triton import final_chunk, read_int32, text_chunk
from trtkit.bench.experiment import Experiment
from trtkit.bench.load import Target
from trtkit.bench.mix import mix_of
from trtkit.bench.sim.capacity import SimPool, Site, Traffic
from trtkit.bench.sim.engine import EngineModel
from trtkit.bench.sim.fleet import pass_through
from trtkit.contract import Contract

STEP_S, TOKEN_S, RATE_PER_S, DURATION_S = 0.02, 0.001, 9.0, 7.0
CONTRACT = Contract.model_validate(
    {
        "name": "x",
        "model": {"source": "m"},
        "engine": {
            "backend": "cpu",
            "limits": {"max_batch_size": 32, "max_input_len": 64, "max_seq_len": 96, "max_num_tokens": 64},
        },
        "classes": {
            "a": {"priority": 1, "ttft_ms": 150, "max_output_tokens": 16},
            "b": {"priority": 2, "ttft_ms": 150, "tpot_ms": 55},
        },
    }
)


class Stepped:
    """An engine that works in steps, each a base and more for each prompt token; running answers go first."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, asyncio.Queue]] = []
        self.running: dict[asyncio.Queue, None] = {}

    async def work(self) -> None:
        loop, end_s = asyncio.get_running_loop(), 0.0
        while True:
            if not self.prompts and not self.running:
                await asyncio.sleep(0.001)
                end_s = loop.time()
                continue
            taken, room, ended, running = 0, 64 - len(self.running), [], list(self.running)
            while self.prompts and taken < room:
                left, queue = self.prompts.pop(0)
                chunk = min(left, room - taken)
                taken += chunk
                if left > chunk:
                    self.prompts.insert(0, (left - chunk, queue))
                else:
                    ended.append(queue)
            # A step begins when the one before should have ended: a late timer does not add up.
            end_s += STEP_S + TOKEN_S * taken
            await asyncio.sleep(end_s - loop.time())
            for queue in (*running, *ended):
                queue.put_nowait(None)
            self.running |= dict.fromkeys(ended)

    async def script(self, request, context):
        prompt, queue = len(request.raw_input_contents[0].split()), asyncio.Queue()
        self.prompts.append((prompt, queue))
        for number in range(read_int32(request, "max_tokens")):
            await queue.get()
            yield text_chunk(request, f"t{number}")
        self.running.pop(queue, None)
        yield final_chunk(request)


async def test_what_is_foreseen_is_measured(fake, filler):
    engine, mix = Stepped(), mix_of(CONTRACT, ())
    fake.script = engine.script
    work = asyncio.create_task(engine.work())
    async with Target(fake.address, filler) as target:
        experiment = Experiment(target, CONTRACT, mix, filler, DURATION_S)
        run = await experiment.run(RATE_PER_S, 3)
    work.cancel()
    model = EngineModel(step_s=STEP_S, prefill_tokens_per_s=1 / TOKEN_S, sequence_s=0.0, context_s=0.0)
    site = Site(CONTRACT, [SimPool.of(CONTRACT, model)], Traffic(mix, RATE_PER_S, DURATION_S))
    jobs = site.traffic.jobs(3)
    pass_through(jobs, site.pools[0].model)
    foreseen = {row.class_name: row for row in site.account([jobs])}
    for row in run.tally.classes:
        other = foreseen[row.class_name]
        assert row.requests == row.ok == other.requests
        assert 0.1 < other.attainment < 0.95
        assert row.attainment == pytest.approx(other.attainment, abs=0.1)
        assert row.ttft_p50_ms == pytest.approx(other.ttft_p50_ms, rel=0.1)
        assert row.tpot_p50_ms == pytest.approx(other.tpot_p50_ms, rel=0.1)
