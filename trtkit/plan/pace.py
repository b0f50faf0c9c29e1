"""From the speed of one step to what users see: slots under the TPOT promise, TTFT, requests per second."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from trtkit.contract.models import Contract
from trtkit.plan.types import ClassPace, EngineLimits, Pace, Workload


class Speed(Protocol):
    """How long an engine's steps take."""

    @property
    def source(self) -> str:
        """Where the numbers come from, for the reader."""

    @property
    def stages(self) -> int:
        """Pipeline stages, which work on as many prompts at once."""

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of the first token of one prompt, alone."""

    def step_ms(self, batch: int, context_tokens: float) -> float:
        """Return the time of one token for each of ``batch`` requests, each with so many tokens behind it."""


@dataclass(frozen=True)
class WithBeams:
    """The speed of requests that are searched with several beams: each takes a place in every step."""

    one: Speed
    beams: int

    @property
    def source(self) -> str:
        """Where the numbers come from."""
        return self.one.source

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.one.stages

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of one prompt, which the beams have in common."""
        return self.one.prefill_ms(tokens)

    def step_ms(self, batch: int, context_tokens: float) -> float:
        """Return the time of one token for each request."""
        return self.one.step_ms(batch * self.beams, context_tokens)


@dataclass(frozen=True)
class Found:
    """The pace, and how many requests may decode at once for the TPOT promise."""

    pace: Pace
    slots: int


def workload_of(contract: Contract, limits: EngineLimits) -> Workload:
    """Return the contract's own worst case: the default class's usual answer to its longest prompt with room for it."""
    spec = contract.classes[contract.fallback_class]
    answer = min(spec.default_output_tokens, max(1, limits.max_seq_len - 1))
    longest = min(spec.max_prompt_tokens or limits.max_input_len, limits.max_input_len)
    return Workload(max(1, min(longest, limits.max_seq_len - answer)), answer)


def pace_of(
    contract: Contract, limits: EngineLimits, kv_tokens: int, speed: Speed, workload: Workload
) -> Found:
    """Return what the contract's classes can expect of an engine that is kept busy with ``workload``."""
    promised = [spec.tpot_ms for spec in contract.classes.values() if spec.tpot_ms is not None]
    slots = decode_slots(speed, workload, limits.max_batch_size, min(promised, default=math.inf))
    batch = max(1, min(slots, kv_tokens // (workload.prompt_tokens + workload.output_tokens)))
    context = _mean_context(workload)
    step = speed.step_ms(batch, context)
    prefill = speed.prefill_ms(workload.prompt_tokens)
    per_request = prefill / speed.stages + workload.output_tokens * step / batch
    pace = Pace(
        source=speed.source,
        workload=workload,
        prefill_tokens_per_s=workload.prompt_tokens / prefill * 1000 * speed.stages,
        step_ms=step,
        batch=batch,
        requests_per_s=1000 / per_request,
        classes=tuple(_class_pace(contract, limits, speed, workload, batch)),
    )
    return Found(pace, slots)


def decode_slots(speed: Speed, workload: Workload, most: int, tpot_ms: float) -> int:
    """Return the largest batch whose TPOT keeps the promise, at least 1."""
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high + 1) // 2
        if busy_tpot_ms(speed, workload, middle) <= tpot_ms:
            low = middle
        else:
            high = middle - 1
    return low


def busy_tpot_ms(speed: Speed, workload: Workload, batch: int) -> float:
    """Return the time between two tokens while the other requests of the batch are replaced as they end.

    Each answer of n tokens sees the prompts of the batch's other requests once. 32 requests of 2000 and 300 tokens at
    100 ms a prompt and 10 ms a step: 10 + 31 x 100 / 300 = 20.3 ms.
    """
    others = (batch - 1) * speed.prefill_ms(workload.prompt_tokens) / speed.stages
    return speed.step_ms(batch, _mean_context(workload)) + others / workload.output_tokens


def _class_pace(
    contract: Contract, limits: EngineLimits, speed: Speed, workload: Workload, batch: int
) -> list[ClassPace]:
    tpot = busy_tpot_ms(speed, workload, batch)
    step = speed.step_ms(batch, _mean_context(workload))
    rows = []
    for name, spec in contract.classes.items():
        prompt = min(spec.max_prompt_tokens or limits.max_input_len, limits.max_input_len)
        pieces = math.ceil(prompt / limits.max_num_tokens)
        ttft = speed.prefill_ms(prompt) + pieces * step
        rows.append(ClassPace(name, ttft, tpot, spec.ttft_ms, spec.tpot_ms))
    return rows


def _mean_context(workload: Workload) -> float:
    return workload.prompt_tokens + workload.output_tokens / 2
