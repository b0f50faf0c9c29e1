"""What simulated requests got, by the same account as measured ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.bench.account import ClassAccount, Sample, account, kept
from trtkit.bench.sim.engine import Job
from trtkit.bench.sim.fleet import SimClass


def sample_of(job: Job, class_name: str) -> Sample:
    """Return a job as its client would have measured it."""
    if job.answered is not None or job.last_s == math.inf:
        outcome = job.answered.value if job.answered is not None else "unfinished"
        return Sample(class_name, outcome, None, None, 0, constraint=job.constraint)
    first_s, last_s = job.first_s - job.arrival_s, job.last_s - job.arrival_s
    return Sample(class_name, "ok", first_s, last_s, job.output_tokens)


@dataclass(frozen=True)
class Score:
    """One run: shares of all requests; a refusal is a miss."""

    requests: int
    attainment: float
    by_class: tuple[float, ...]
    refused: float
    wasted: float
    """Share of the prompt and answer tokens worked on for requests that broke a promise all the same."""


def score(jobs: Sequence[Job], classes: Sequence[SimClass]) -> Score:
    """Sum a run up; classes without promises count nowhere."""
    good, count = [0] * len(classes), [0] * len(classes)
    worked = wasted = refused = 0
    promised = [each.promise.has_slo for each in classes]
    for job in jobs:
        if not promised[job.class_index]:
            continue
        each = classes[job.class_index]
        is_kept = kept(sample_of(job, each.name), each.promise)
        count[job.class_index] += 1
        good[job.class_index] += is_kept
        refused += job.answered is not None
        tokens = job.prompt_tokens - job.left_tokens + (job.output_tokens if job.last_s < math.inf else 0)
        worked += tokens
        wasted += 0 if is_kept else tokens
    total = max(1, sum(count))
    return Score(
        requests=sum(count),
        attainment=sum(good) / total,
        by_class=tuple(g / max(1, n) for g, n in zip(good, count, strict=True)),
        refused=refused / total,
        wasted=wasted / max(1, worked),
    )


def account_of(jobs: Sequence[Job], classes: Sequence[SimClass], duration_s: float) -> list[ClassAccount]:
    """Return the account per class."""
    samples = [sample_of(job, classes[job.class_index].name) for job in jobs]
    return account(samples, {each.name: each.promise for each in classes}, duration_s)
