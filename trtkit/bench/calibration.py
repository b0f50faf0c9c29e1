"""A measured calibration: an engine's speed as plans and simulations read it, fitted to what a probe saw."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from statistics import median
from typing import Any

import trtkit
from trtkit.bench.probe import Row
from trtkit.bench.sim.fitting import factors_of
from trtkit.canonical import content_key
from trtkit.contract.models import Contract
from trtkit.errors import StageError
from trtkit.plan import Plan
from trtkit.plan.measured import engine_id
from trtkit.plan.silicon import Three

_LENGTHS = 4
"""Prompt lengths that a line with a bend needs, and one that can contradict it."""
_GROWTH = 1.2
"""The longest prompt takes at least so many times the shortest, or the time tells nothing of a token."""
_LARGEST_ERROR = 0.25
"""Median difference from which times are not those of an engine that is alone."""


@dataclass(frozen=True)
class Errors:
    """Relative differences between times that were measured and those of the fit."""

    median: float
    worst: float


@dataclass(frozen=True)
class FittedSpeed:
    """What :class:`~trtkit.plan.silicon.Fit` is made of, and how far it is from what was measured."""

    prefill_ms: Three
    step_ms: Three
    prefill_error: Errors
    step_error: Errors


def fit_rows(rows: Sequence[Row]) -> FittedSpeed:
    """Fit a prompt's time to lone prompts, a step's time to all; of repeated prompts the median counts.

    Raises:
        StageError: The rows cannot tell: too few lengths, one batch or context only, or times of a busy engine.
    """
    alone = {
        length: median(each.ttft_s for each in same)
        for (_, length), same in _alike(rows)
        if same[0].running == 1
    }
    steps = [
        (same[0].running, median(each.context_tokens for each in same), median(each.tpot_s for each in same))
        for _, same in _alike(rows)
    ]
    _check_spread(alone, [step[0] for step in steps])
    prefill, prefill_error = _fit([(1, n, n * n) for n in alone], list(alone.values()), "first tokens")
    step, step_error = _fit([(1, n, tokens) for n, tokens, _ in steps], [each for *_, each in steps], "steps")
    return FittedSpeed(prefill, step, prefill_error, step_error)


def calibration_of(
    rows: Sequence[Row], contract: Contract, plan: Plan, server: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the document that :func:`~trtkit.plan.measured.parse_measured` reads, with conditions and residuals.

    Raises:
        StageError: The rows cannot tell.
    """
    fit, date = fit_rows(rows), datetime.now(timezone.utc).isoformat(timespec="seconds")
    errors = {"prefill": asdict(fit.prefill_error), "step": asdict(fit.step_error)}
    near = ", ".join(f"{name} within {each['median']:.0%}" for name, each in errors.items())
    return {
        "source": f"trtkit bench at {server['address']}, {date[:10]}, {len(rows)} prompts: {near} (median)",
        "engine": asdict(engine_id(plan)),
        "prefill_ms": fit.prefill_ms,
        "step_ms": fit.step_ms,
        "conditions": {
            "trtkit": trtkit.__version__,
            "date": date,
            "contract": contract.name,
            "contract_sha256": content_key(contract.model_dump(mode="json")),
            **server,
        },
        "residuals": errors,
        "rows": [asdict(row) for row in rows],
    }


def as_text(document: Mapping[str, Any]) -> str:
    """Return a calibration as its file has it: one line for each of what was measured."""
    rows = ",\n    ".join(json.dumps(row) for row in document["rows"])
    head = json.dumps({**document, "rows": []}, indent=2)
    return head.removesuffix("[]\n}") + f"[\n    {rows}\n  ]\n}}\n"


def _alike(rows: Iterable[Row]) -> Iterator[tuple[tuple[int, int], list[Row]]]:
    """Yield the rows that repeat each other, by running requests and length."""
    found: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.running, row.prompt_tokens].append(row)
    yield from sorted(found.items())


def _check_spread(alone: Mapping[int, float], batches: Sequence[int]) -> None:
    if len(alone) < _LENGTHS:
        hint = f"allow longer prompts: at least {_LENGTHS} lengths are needed"
        raise _untold(f"lone prompts of {len(alone)} lengths only", hint)
    if len(set(batches)) < 2:
        hint = "engine.limits.max_batch_size of 2 or more, and a target that takes them"
        raise _untold(f"one batch size only ({batches[0]}), so no step tells what a request adds", hint)
    shortest, longest = min(alone), max(alone)
    if alone[longest] < _GROWTH * alone[shortest]:
        message = (
            f"{longest} prompt tokens took {1000 * alone[longest]:.3g} ms and {shortest} took "
            f"{1000 * alone[shortest]:.3g} ms: other things were waited for, or it is too short"
        )
        raise _untold(message, "measure an idle target, with longer prompts (engine.limits.max_input_len)")


def _fit(terms: Sequence[tuple[float, ...]], seconds: Sequence[float], what: str) -> tuple[Three, Errors]:
    base, linear, last = factors = factors_of(terms, seconds)
    errors = [
        abs(sum(map(_times, factors, term)) / each - 1) for term, each in zip(terms, seconds, strict=True)
    ]
    found = Errors(round(median(errors), 4), round(max(errors), 4))
    if found.median > _LARGEST_ERROR:
        message = f"{what} differ by {found.median:.0%} from those of an engine that is alone (worst {found.worst:.0%})"
        raise _untold(message, "measure an idle target on an idle machine")
    return (1000 * float(base), 1000 * float(linear), 1000 * float(last)), found


def _times(factor: float, value: float) -> float:
    return factor * value


def _untold(message: str, hint: str) -> StageError:
    return StageError(f"no calibration comes of this: {message}", hint=hint)
