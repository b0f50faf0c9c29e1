"""Who asks for how much, when: drawn once from a seed, so that every policy meets the same requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from trtkit.bench.sim.engine import Job

Draws = Any
"""A numpy Generator, or an array of numbers."""


@dataclass(frozen=True)
class LengthTable:
    """Percentiles of prompt and output tokens of one trace."""

    percentiles: Sequence[float]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]

    def prompts(self, draw: Draws, count: int) -> Draws:
        """Draw prompt lengths by the inverse of the distribution, linear in the logarithm between percentiles."""
        return self._lengths(draw, count, self.prompt_tokens)

    def outputs(self, draw: Draws, count: int) -> Draws:
        """Draw output lengths, independent of the prompts'."""
        return self._lengths(draw, count, self.output_tokens)

    def _lengths(self, draw: Draws, count: int, tokens: Sequence[int]) -> Draws:
        logs = np.interp(draw.uniform(0, 100, count), self.percentiles, np.log(tokens))
        return np.maximum(1, np.rint(np.exp(logs))).astype(int)


@cache
def length_tables() -> dict[str, LengthTable]:
    """Return the tables that trtkit ships, by the name of their trace."""
    data = json.loads(files("trtkit.bench.sim").joinpath("lengths.json").read_text(encoding="utf-8"))
    return {
        name: LengthTable(data["percentiles"], table["prompt_tokens"], table["output_tokens"])
        for name, table in data["tables"].items()
    }


@dataclass(frozen=True)
class Source:
    """One class's part of the traffic."""

    class_name: str
    share: float
    lengths: str
    """Name of a table."""
    max_tokens: int
    """What its requests ask for at most; longer outputs are cut there."""
    longest_prompt: int | None = None
    """Longer prompts are drawn as this long."""
    tenants: int = 1
    """Drawn with Zipf weights of exponent 1.1."""


def gamma_arrivals(draw: Draws, *, rate_per_s: float, cv: float, duration_s: float) -> Draws:
    """Return arrival times whose gaps have this coefficient of variation; 1 is Poisson."""
    shape, scale = 1 / cv**2, cv**2 / rate_per_s
    times = np.zeros(0)
    while not times.size or times[-1] < duration_s:
        gaps = draw.gamma(shape, scale, max(1000, int(rate_per_s * duration_s)))
        times = np.concatenate([times, (times[-1] if times.size else 0.0) + np.cumsum(gaps)])
    return times[times < duration_s]


def draw_jobs(sources: Sequence[Source], times_s: Draws, draw: Draws) -> list[Job]:
    """Return one job per arrival, its class, lengths and tenant drawn independently."""
    shares = np.array([source.share for source in sources])
    chosen = draw.choice(len(sources), size=len(times_s), p=shares / shares.sum())
    prompts, outputs, tenants = (np.zeros(len(times_s), dtype=int) for _ in range(3))
    for index, source in enumerate(sources):
        mine = np.flatnonzero(chosen == index)
        table = length_tables()[source.lengths]
        lengths = table.prompts(draw, len(mine))
        prompts[mine] = np.minimum(lengths, source.longest_prompt) if source.longest_prompt else lengths
        outputs[mine] = table.outputs(draw, len(mine))
        weights = np.arange(1, source.tenants + 1) ** -1.1
        tenants[mine] = draw.choice(source.tenants, size=len(mine), p=weights / weights.sum())
    return [
        Job(
            class_index=index,
            arrival_s=at_s,
            prompt_tokens=prompt,
            output_tokens=output,
            max_tokens=sources[index].max_tokens,
            tenant=f"t{tenant}",
        )
        for index, at_s, prompt, output, tenant in zip(
            *(each.tolist() for each in (chosen, times_s, prompts, outputs, tenants)), strict=True
        )
    ]
