"""What no scheduler can exceed on one engine, even one that knows all arrivals and lengths in advance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtkit.bench.sim.engine import EngineModel, Job
from trtkit.bench.sim.fleet import SimClass


def attainment_bound(jobs: Sequence[Job], classes: Sequence[SimClass], model: EngineModel) -> float:
    """Return an upper bound of the share of requests whose first token can come in time.

    The engine may switch between prompts at will, and a prompt may count in part: then the work that can be done in
    time is a polymatroid, and giving every prompt, the shortest first, as much as still fits is optimal. Decodes, KV
    and time per token cost nothing. For any two times, the work that must happen between them cannot exceed what the
    engine does in that time, so a prompt gets the smallest slack of the intervals around its own.
    """
    tokens_per_s = model.max_num_tokens / (model.step_s + model.max_num_tokens / model.prefill_tokens_per_s)
    promised = [job for job in jobs if classes[job.class_index].promise.ttft_ms is not None]
    due_s = np.array(
        [job.arrival_s + (classes[job.class_index].promise.ttft_ms or 0) / 1000 for job in promised]
    )
    arrival_s = np.array([job.arrival_s for job in promised])
    ends_s = np.sort(due_s)
    # slack[a, b]: what the engine can still do between arrival a and end b.
    slack = (ends_s[None, :] - arrival_s[:, None]).astype(np.float32)
    first_end = np.searchsorted(ends_s, due_s, side="left")
    value = 0.0
    for index in np.argsort([job.prompt_tokens for job in promised], kind="stable"):
        work_s = promised[index].prompt_tokens / tokens_per_s
        around = slack[: index + 1, first_end[index] :]
        given_s = min(work_s, float(around.min()))
        if given_s > 0:
            around -= np.float32(given_s)
            value += given_s / work_s
    return value / max(1, len(promised))
