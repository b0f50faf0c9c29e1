"""From the speed of one step to what users see: slots under the TPOT promise, TTFT, requests per second."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from trtkit.contract.models import Contract
from trtkit.contract.service import ServiceClass
from trtkit.plan.types import Basis, ClassPace, EngineLimits, Pace, Workload, Zones
from trtkit.plan.waiting import Waiting


class Speed(Protocol):
    """How long an engine's steps take."""

    @property
    def source(self) -> str:
        """Where the numbers come from, for the reader."""

    @property
    def basis(self) -> Basis:
        """What kind of source that is."""

    @property
    def stages(self) -> int:
        """Pipeline stages, which work on as many prompts at once."""

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of the first token of one prompt, alone."""

    def step_ms(self, batch: int, context_tokens: float) -> float:
        """Return the time of one token for each of ``batch`` requests, each with so many tokens behind it."""


@dataclass(frozen=True)
class Served:
    """A speed as it is served: each beam takes a place in every step, windows bound what is looked back on."""

    one: Speed
    beams: int
    limits: EngineLimits
    zones: Zones

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.one.stages

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of one prompt, which the beams have in common."""
        return self.one.prefill_ms(tokens)

    def ttft_ms(self, tokens: int, step_ms: float) -> float:
        """Return the time from a prompt's turn to its first token; others decode between its pieces."""
        return self.prefill_ms(tokens) + math.ceil(tokens / self.limits.max_num_tokens) * step_ms

    def step_ms(self, batch: int, work: Workload) -> float:
        """Return the time of one token for each request, half-way through its answer."""
        context = work.prompt_tokens + work.output_tokens / 2
        return self.one.step_ms(batch * self.beams, self.zones.seen_tokens(context))

    def busy_tpot_ms(self, batch: int, work: Workload) -> float:
        """Return the time between two tokens while the other requests of the batch are replaced as they end.

        Each answer of n tokens sees the prompts of the batch's other requests once. 32 requests of 2000 and 300
        tokens at 100 ms a prompt and 10 ms a step: 10 + 31 x 100 / 300 = 20.3 ms.
        """
        others = (batch - 1) * self.prefill_ms(work.prompt_tokens) / self.stages
        return self.step_ms(batch, work) + others / work.output_tokens

    def batch(self, work: Workload) -> int:
        """Return how many such requests decode at once: slots, or fewer where the KV zone ends before."""
        need = self.zones.kv_need(work.prompt_tokens + work.output_tokens, self.limits.tokens_per_block)
        return max(1, min(self.zones.decode_slots, self.zones.kv_tokens // need))


def workload_of(spec: ServiceClass, limits: EngineLimits) -> Workload:
    """Return a class's heaviest request: its usual answer to its longest prompt with room for it."""
    most = limits.max_seq_len
    answer = max(1, min(spec.default_output_tokens, spec.max_output_tokens or most, most - 1))
    return Workload(max(1, min(_longest(spec, limits), most - answer)), answer)


def _longest(spec: ServiceClass, limits: EngineLimits) -> int:
    return min(spec.max_prompt_tokens or limits.max_input_len, limits.max_input_len)


def paced(
    contract: Contract, limits: EngineLimits, zones: Zones, speed: Speed, workload: Workload | None
) -> tuple[Zones, Pace]:
    """Return the zones with the slots that the TPOT promises leave, and what the contract's classes can expect.

    Slots are those under which the tightest promise holds whichever class the others' prompts are of; ``workload``
    takes the place of all classes' requests.
    """
    served = Served(speed, contract.engine.limits.max_beam_width, limits, zones)
    works = {name: workload or workload_of(spec, limits) for name, spec in contract.classes.items()}
    promised = [spec.tpot_ms for spec in contract.classes.values() if spec.tpot_ms is not None]
    tightest, most = min(promised, default=math.inf), limits.max_batch_size
    slots = {name: decode_slots(served, work, most, tightest) for name, work in works.items()}
    heaviest = min(slots, key=lambda name: slots[name])
    zones = replace(zones, decode_slots=slots[heaviest])
    served = replace(served, zones=zones)
    work, classes = works[contract.fallback_class], tuple(_class_paces(contract, served, works, workload))
    pace = replace(
        _pace(served, work),
        bound_by=heaviest if workload is None and slots[heaviest] < most else None,
        classes=classes,
    )
    kept = _kept_per_s(served, work, classes, contract.objective.attainment)
    return zones, replace(pace, kept_requests_per_s=None if kept is None else min(kept, pace.requests_per_s))


def decode_slots(served: Served, work: Workload, most: int, tpot_ms: float) -> int:
    """Return the largest batch whose TPOT keeps the promise, at least 1."""
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high + 1) // 2
        if served.busy_tpot_ms(middle, work) <= tpot_ms:
            low = middle
        else:
            high = middle - 1
    return low


def _pace(served: Served, work: Workload) -> Pace:
    """Return the pace of one kind of request, without what the classes can expect."""
    batch = served.batch(work)
    step, prefill = served.step_ms(batch, work), served.prefill_ms(work.prompt_tokens)
    per_request = prefill / served.stages + work.output_tokens * step / batch
    return Pace(
        source=served.one.source,
        basis=served.one.basis,
        workload=work,
        prefill_tokens_per_s=work.prompt_tokens / prefill * 1000 * served.stages,
        step_ms=step,
        batch=batch,
        requests_per_s=1000 / per_request,
    )


def _kept_per_s(
    served: Served, work: Workload, classes: Sequence[ClassPace], attainment: float
) -> float | None:
    """Return the rate of requests at which all classes' promises hold; None where there are none."""
    if not any(each.promises for each in classes):
        return None
    if not all(each.kept for each in classes):
        return 0.0
    batch = served.batch(work)
    ttft, tpot = (
        served.ttft_ms(work.prompt_tokens, served.step_ms(batch, work)),
        served.busy_tpot_ms(batch, work),
    )
    queue = Waiting(ttft / served.stages, batch, ttft + (work.output_tokens - 1) * tpot)
    return 1000 * queue.most_per_ms(min(each.patience_ms for each in classes), 1 - attainment)


def _class_paces(
    contract: Contract, served: Served, works: Mapping[str, Workload], asked: Workload | None
) -> Iterator[ClassPace]:
    """Yield what each class can expect; all of them share the steps and wait for the prompts of the heaviest."""
    step = max(served.step_ms(served.batch(work), work) for work in works.values())
    tpot = max(served.busy_tpot_ms(served.batch(work), work) for work in works.values())
    for name, spec in contract.classes.items():
        longest = asked.prompt_tokens if asked else _longest(spec, served.limits)
        yield ClassPace(
            name=name,
            prompt_tokens=longest,
            ttft_ms=served.ttft_ms(longest, step),
            tpot_ms=tpot,
            total_ms=served.ttft_ms(works[name].prompt_tokens, step) + (works[name].output_tokens - 1) * tpot,
            promised_ttft_ms=spec.ttft_ms,
            promised_tpot_ms=spec.tpot_ms,
            promised_deadline_ms=spec.deadline_ms,
        )
