"""Engines behind an admission, or behind nothing, in simulated time."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush, heapreplace

from trtkit.bench.sim.engine import Engine, EngineModel, Job
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import Abort, Admission, Decision, Dispatch, Request, Terms, TimeLimits

PROGRESS_REQUESTS = 20_000
"""Between two calls about progress: about a second; a shorter run has none."""


@dataclass(frozen=True)
class SimClass:
    """A class as admission is told of it."""

    name: str
    promise: ServiceClass
    limits: TimeLimits
    terms: Terms


def sim_classes(classes: Mapping[str, ServiceClass], terms: Mapping[str, Terms]) -> list[SimClass]:
    """Return the contract's classes in its order; a modelled engine does not stall, so nothing watches its tokens."""
    return [
        SimClass(name, promise, replace(TimeLimits.of(promise), inter_token_s=math.inf), terms[name])
        for name, promise in classes.items()
    ]


class Fleet:
    """Some engines that run side by side; knows which has its next event when."""

    def __init__(self, models: Iterable[EngineModel]) -> None:
        self.engines = [Engine(model) for model in models]
        self._agenda: list[tuple[float, int]] = []

    def submit(self, index: int, job: Job, now_s: float) -> None:
        """Send a request to an engine."""
        engine = self.engines[index]
        job.engine = index
        before_s = engine.end_s
        engine.submit(job, now_s)
        if engine.end_s != before_s:
            heappush(self._agenda, (engine.end_s, index))

    def next_s(self) -> float:
        """Return when something will happen at an engine, or infinity."""
        agenda = self._agenda
        while agenda and self.engines[agenda[0][1]].end_s != agenda[0][0]:
            heappop(agenda)
        return agenda[0][0] if agenda else math.inf

    def advance(self) -> tuple[list[Job], list[Job]]:
        """Go to that time; return whose first token came and who is complete."""
        _, index = self._agenda[0]
        engine = self.engines[index]
        events = engine.advance()
        if engine.busy:
            heapreplace(self._agenda, (engine.end_s, index))
        else:
            heappop(self._agenda)
        return events


def pass_through(jobs: Sequence[Job], model: EngineModel, engines: int = 1) -> None:
    """Send every request to the next engine in turn as it comes: what a Triton without proxy does."""
    fleet = Fleet([model] * engines)
    for number, job in enumerate(jobs):
        while fleet.next_s() <= job.arrival_s:
            fleet.advance()
        fleet.submit(number % engines, job, job.arrival_s)
    while fleet.next_s() < math.inf:
        fleet.advance()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from going through all jobs again and again: no request leaves a cycle behind."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Simulation:
    """Drives an :class:`Admission` as the proxy does; each of its pools has engines of one model."""

    def __init__(self, admission: Admission, classes: Sequence[SimClass], *models: EngineModel) -> None:
        self.admission = admission
        self.classes = classes
        pools = zip(admission.pools, models, strict=True)
        self.fleet = Fleet(model for pool, model in pools for _ in pool.backends)
        self._jobs: dict[str, Job] = {}

    def run(self, jobs: Sequence[Job], on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Let the requests arrive, and go on until none is left; now and then tell how many have come."""
        with _uncollected():
            for number, job in enumerate(jobs):
                self._run_until(job.arrival_s)
                if number and not number % PROGRESS_REQUESTS:
                    on_progress(number)
                key = str(number)
                self._jobs[key] = job
                job.key = key
                self._apply(self.admission.offer(self._request(key, job), job.arrival_s), job.arrival_s)
            self._run_until(math.inf)

    def _run_until(self, until_s: float) -> None:
        admission, fleet = self.admission, self.fleet
        timer_s = admission.next_expiry_s()
        while True:
            engine_s = fleet.next_s()
            if timer_s is not None and timer_s < engine_s:
                if timer_s > until_s or timer_s == math.inf:
                    return
                self._apply(admission.expire(timer_s), timer_s)
            elif engine_s > until_s or engine_s == math.inf:
                return
            else:
                first, done = fleet.advance()
                # Most steps end nothing: then admission has nothing new to be asked for.
                if not (first or done):
                    continue
                self._take(first, done, engine_s)
            timer_s = admission.next_expiry_s()

    def _take(self, first: list[Job], done: list[Job], now_s: float) -> None:
        for job in first:
            if decisions := self.admission.first_token(job.key, now_s):
                self._apply(decisions, now_s)
        for job in done:
            del self._jobs[job.key]
            tokens = job.output_tokens if job.last_s < math.inf else None
            if decisions := self.admission.finish(job.key, now_s, tokens=tokens):
                self._apply(decisions, now_s)

    def _apply(self, decisions: list[Decision], now_s: float) -> None:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self.fleet.submit(decision.backend, self._jobs[decision.id], now_s)
            elif isinstance(decision, Abort):
                job = self._jobs[decision.id]
                job.answered = decision.reason
                self.fleet.engines[job.engine].cancel(job, now_s)
            else:
                job = self._jobs.pop(decision.id)
                job.answered = decision.reason
                job.constraint = decision.record.constraint.value if decision.record else ""

    def _request(self, key: str, job: Job) -> Request:
        each = self.classes[job.class_index]
        return Request(
            key,
            each.name,
            each.promise.priority,
            job.prompt_tokens,
            job.max_tokens,
            job.arrival_s,
            each.limits,
            each.promise.sheddable,
            True,
            job.tenant,
            each.terms,
        )
