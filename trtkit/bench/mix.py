"""From tables of lengths to the requests of a run: classes, tenants, prompts, and clients that misbehave."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trtkit.bench.arrivals import Arrivals
from trtkit.bench.filler import Filler
from trtkit.bench.schedule import Shot
from trtkit.bench.sim.engine import Job
from trtkit.bench.sim.workload import Source, draw_jobs, length_tables
from trtkit.contract.models import Contract
from trtkit.errors import InputError
from trtkit.plan.types import EngineLimits

DEFAULT_TABLE = "azure2023_conversation"
_SLOW_READ_S = 0.25
_SHORTEST_PROMPT = 8
_UNLIMITED = 1 << 30
_CUT_DRAWS = 2000


@dataclass(frozen=True)
class Manners:
    """Shares of requests whose clients do more than wait."""

    cancels: float = 0.0
    """Leave somewhere in the answer, evenly over its length."""
    slow_readers: float = 0.0
    deadlines: bool = False
    """Clients send their class's deadline as the deadline of the call."""


@dataclass(frozen=True)
class Mix:
    """What is asked for, at any rate."""

    sources: Sequence[Source]
    deadlines_s: Sequence[float | None]
    arrivals: Arrivals = field(default_factory=Arrivals)
    scale: float = 1.0
    """Factor on prompts and answers: a small engine gets the shape of a trace, not its size."""
    longest_prompt: int | None = None
    longest_sequence: int | None = None
    manners: Manners = Manners()

    def jobs(self, *, rate_per_s: float | None, duration_s: float, seed: int) -> list[Job]:
        """Draw the requests of one run within all limits: those of one seed and rate are always the same.

        Each asks for as many tokens as its answer has.
        """
        draw = np.random.default_rng(seed)
        times_s = self.arrivals.times(draw, rate_per_s, duration_s)
        jobs = draw_jobs(self.sources, times_s, draw)
        # Times of a replay are those of the trace's first rows.
        rows = self.arrivals.trace[: len(jobs)]
        for job, row in zip(jobs, rows, strict=False):
            job.prompt_tokens, job.output_tokens = row.prompt_tokens, row.output_tokens
        for job in jobs:
            self._fit(job)
        return jobs

    def length_s(self, last_s: float, rate_per_s: float | None, duration_s: float) -> float:
        """Return how long requests arrived of which the last came then: a trace may be shorter than asked for."""
        if not self.arrivals.trace:
            return duration_s
        length_s = min(duration_s, last_s + 1 / rate_per_s) if rate_per_s else last_s
        # A trace may be of one moment.
        return max(1.0, length_s)

    def shots(self, filler: Filler, *, rate_per_s: float, duration_s: float, seed: int) -> list[Shot]:
        """Draw the requests of one run; those of one seed and rate are always the same, but for their words."""
        manners = random.Random(seed)  # noqa: S311 - a workload, not a secret
        # Other words each time: an engine that keeps prefixes would answer a repeated run from its cache.
        words = random.Random()  # noqa: S311
        jobs = self.jobs(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)
        return [self._shot(job, filler, manners, words) for job in jobs]

    def described(self) -> dict[str, str]:
        """Return the table of each class with its share of the requests, and how many of its lengths are cut."""
        total = sum(source.share for source in self.sources)
        return {
            source.class_name: f"{self._told(source)} {source.share / total:.0%}" + self._cut(source)
            for source in self.sources
            if source.share
        }

    def _told(self, source: Source) -> str:
        if not self.arrivals.trace:
            return source.lengths
        step_s = self.arrivals.stamps_s
        return f"trace (requests of one stamp spread over its {step_s:g} s)" if step_s else "trace"

    def _cut(self, source: Source) -> str:
        """Return which shares of prompts and answers a limit shortens."""
        drawn = self._lengths(source)
        fitted = [self._within(source, *each) for each in drawn]
        prompts = sum(
            got < self._scaled(each, _SHORTEST_PROMPT)
            for (each, _), (got, _) in zip(drawn, fitted, strict=True)
        )
        answers = sum(got < self._scaled(each) for (_, each), (_, got) in zip(drawn, fitted, strict=True))
        told = [
            f"{count / len(drawn):.0%} of {what} cut"
            for count, what in ((prompts, "prompts"), (answers, "answers"))
            if count
        ]
        return f" ({', '.join(told)})" if told else ""

    def _lengths(self, source: Source) -> list[tuple[int, int]]:
        if self.arrivals.trace:
            return [(row.prompt_tokens, row.output_tokens) for row in self.arrivals.trace]
        table, draw = length_tables()[source.lengths], np.random.default_rng(0)
        lengths = table.prompts(draw, _CUT_DRAWS).tolist(), table.outputs(draw, _CUT_DRAWS).tolist()
        return list(zip(*lengths, strict=True))

    def _scaled(self, tokens: int, least: int = 1) -> int:
        return max(least, round(tokens * self.scale))

    def _within(self, source: Source, prompt_tokens: int, output_tokens: int) -> tuple[int, int]:
        """Return both lengths, scaled, within what class and engine take."""
        longest = min(each for each in (self.longest_prompt, source.longest_prompt, _UNLIMITED) if each)
        prompt = min(self._scaled(prompt_tokens, _SHORTEST_PROMPT), longest)
        room = (self.longest_sequence or _UNLIMITED) - prompt
        return prompt, max(1, min(self._scaled(output_tokens), source.max_tokens, room))

    def _fit(self, job: Job) -> None:
        source = self.sources[job.class_index]
        job.prompt_tokens, job.output_tokens = self._within(source, job.prompt_tokens, job.output_tokens)
        job.left_tokens, job.max_tokens = job.prompt_tokens, job.output_tokens

    def _shot(self, job: Job, filler: Filler, manners: random.Random, words: random.Random) -> Shot:
        source, answer = self.sources[job.class_index], job.output_tokens
        # Drawn for every request, so that one share does not change who falls under another.
        leaves, where, slow = manners.random(), manners.random(), manners.random()
        return Shot(
            job.arrival_s,
            source.class_name,
            filler.write(job.prompt_tokens, words),
            answer,
            prompt_tokens=job.prompt_tokens,
            tenant=job.tenant if source.tenants > 1 else "",
            whole_answer=True,
            deadline_s=self.deadlines_s[job.class_index] if self.manners.deadlines else None,
            cancel_after_tokens=int(where * answer) if leaves < self.manners.cancels else None,
            read_pause_s=_SLOW_READ_S if slow < self.manners.slow_readers else 0.0,
        )


def mix_of(
    contract: Contract, traffic: Sequence[str], tenants: int = 1, limits: EngineLimits | None = None
) -> Mix:
    """Return the mix of a contract's classes; ``traffic`` has ``CLASS=TABLE[:SHARE]``, else chats in equal shares.

    Lengths stay within the plan's limits; without a plan, within what the contract itself says.

    Raises:
        InputError: A text names no class or table, a class is named twice, or a share is no number above 0.
    """
    parsed = [_parse(text, contract) for text in traffic]
    given = dict(parsed)
    if len(given) < len(parsed):
        hint = "name each class once; one class has one table"
        raise InputError(f"--traffic names a class twice: {', '.join(traffic)}", hint=hint)
    lengths = limits or contract.engine.limits
    return Mix(
        [_source(contract, name, given, tenants) for name in contract.classes],
        [each.deadline_ms and each.deadline_ms / 1000 for each in contract.classes.values()],
        longest_prompt=lengths.max_input_len,
        longest_sequence=lengths.max_seq_len,
    )


def _source(contract: Contract, name: str, given: Mapping[str, tuple[str, float]], tenants: int) -> Source:
    promise = contract.classes[name]
    table, share = given.get(name, (DEFAULT_TABLE, 0.0 if given else 1.0))
    return Source(
        name,
        share,
        table,
        promise.max_output_tokens or _UNLIMITED,
        longest_prompt=promise.max_prompt_tokens,
        tenants=tenants,
    )


def _parse(text: str, contract: Contract) -> tuple[str, tuple[str, float]]:
    name, _, rest = text.partition("=")
    table, _, share = rest.partition(":")
    try:
        weight = float(share or 1)
    except ValueError:
        weight = 0.0
    if name not in contract.classes or table not in length_tables() or not 0 < weight < 1e9:
        hint = f"classes: {', '.join(contract.classes)}; tables: {', '.join(length_tables())}; shares above 0"
        raise InputError(f"--traffic {text!r} is not CLASS=TABLE[:SHARE]", hint=hint)
    return name, (table, weight)
