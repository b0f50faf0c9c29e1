"""Lone prompts beside a known number of running requests: what an engine's speed can be fitted to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtkit.bench.filler import Filler
from trtkit.bench.load import Target
from trtkit.bench.schedule import Shot
from trtkit.errors import StageError
from trtkit.proxy.admission import Outcome

BESIDE = (0, 1, 3, 7)
PROMPTS = 6
ROUNDS = 3
"""Times that each is measured, so that one disturbance does not count."""
_PROBE_TOKENS = 12
_SHORTEST = 16
_LONGEST_WAIT = 0.1
"""Share of the time to the first token from which a wait in a queue is not overlooked."""


@dataclass(frozen=True)
class Row:
    """One lone prompt beside requests that run: what a calibration is fitted to."""

    prompt_tokens: int
    ttft_s: float
    tpot_s: float
    running: int
    """Requests that had a token in each step, itself included."""
    context_tokens: float
    """Tokens behind all of them, half-way through this one's answer."""


async def probe_engine(
    target: Target,
    filler: Filler,
    class_name: str,
    *,
    longest_prompt: int,
    longest_answer: int,
    most_running: int = 1 + max(BESIDE),
    rounds: int = ROUNDS,
    on_row: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """Measure prompts of six lengths beside zero to seven running requests, as far as the engine takes so many.

    Raises:
        StageError: A prompt was not answered.
    """
    draw = random.Random(0)  # noqa: S311 - a workload, not a secret
    ratio = (longest_prompt / _SHORTEST) ** (1 / (PROMPTS - 1))
    lengths = [round(_SHORTEST * ratio**step) for step in range(PROMPTS)]

    def shot(prompt_tokens: int, answer_tokens: int) -> Shot:
        prompt = filler.write(prompt_tokens, draw)
        return Shot(0.0, class_name, prompt, answer_tokens, prompt_tokens=prompt_tokens, whole_answer=True)

    await _ask(target, shot(_SHORTEST, _PROBE_TOKENS))  # the first request of a server takes longer
    rows = []
    for beside in (each for each in BESIDE if each < most_running):
        runners = [_Runner(target, lambda: shot(_SHORTEST, longest_answer)) for _ in range(beside)]
        try:
            await asyncio.gather(*(runner.started.wait() for runner in runners))
            for length in lengths * rounds:
                rows.append(await _ask(target, shot(length, _PROBE_TOKENS), runners))
                on_row(rows[-1])
        finally:
            await asyncio.gather(*(runner.stop() for runner in runners))
    return rows


class _Runner:
    """Keeps one request running."""

    def __init__(self, target: Target, draw: Callable[[], Shot]) -> None:
        self.started = asyncio.Event()
        self._target = target
        self._draw = draw
        self._answer_tokens = 0
        self._task = asyncio.create_task(self._run())

    @property
    def context_tokens(self) -> float:
        """Tokens behind its next one."""
        return _SHORTEST + self._answer_tokens

    async def _run(self) -> None:
        while True:
            self._answer_tokens = 0
            sample = await self._target.ask(self._draw(), on_token=self._note)
            if sample.kind is not Outcome.OK:
                await asyncio.sleep(0.1)

    def _note(self) -> None:
        self._answer_tokens += 1
        self.started.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _ask(target: Target, shot: Shot, beside: Sequence[_Runner] = ()) -> Row:
    sample = await target.ask(shot)
    if sample.ttft_s is None or sample.tpot_s is None:
        raise StageError(
            f"a prompt of {shot.prompt_tokens} tokens was not answered: {sample.outcome}",
            hint="probe an idle target, with prompts that it takes (engine.limits.max_input_len)",
        )
    if sample.queue_s is not None and sample.queue_s > _LONGEST_WAIT * sample.ttft_s:
        raise StageError(
            f"a prompt of {shot.prompt_tokens} tokens waited {1000 * sample.queue_s:.0f} ms in the proxy's queue",
            hint="probe an idle target, or name the Triton behind the proxy: --capacity-target",
        )
    half = _PROBE_TOKENS / 2
    behind = shot.prompt_tokens + half + sum(max(_SHORTEST, each.context_tokens - half) for each in beside)
    return Row(shot.prompt_tokens, sample.ttft_s, sample.tpot_s, 1 + len(beside), behind)
