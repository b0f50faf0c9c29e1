"""An engine's constants from what a run has measured."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from trtkit.bench.sim.engine import EngineModel
from trtkit.errors import InputError

_ENOUGH = 20
_MOST = 1e12
_LEAST = {
    **dict.fromkeys(("max_num_tokens", "max_batch_size", "kv_tokens", "tokens_per_block"), 1),
    **dict.fromkeys(("step_s", "prefill_tokens_per_s"), 1e-9),
}
"""Of constants that may not be 0."""
_EXTRA = frozenset({"prefill_s", "square_s", "hidden_s", "cancel_s"})
"""What most engines are modelled without, and what the runtime itself sets."""
_HINT = (
    f"a JSON object with any of: {', '.join(field.name for field in fields(EngineModel))}; or at least {_ENOUGH} JSON "
    'lines of requests that were measured: {"prompt_tokens": 1200, "ttft_s": 0.08, "tpot_s": 0.011, "running": 7}'
)


class Known(str, enum.Enum):
    """What an engine's constants are known from."""

    DECLARED = "declared"
    """Of an engine that stands for many, and was not measured."""
    GIVEN = "given"
    MEASURED = "measured"
    FORESEEN = "foreseen"
    """By the plan, before there is hardware."""


@dataclass(frozen=True)
class Modelled:
    """An engine's constants, and where they are from."""

    model: EngineModel
    known: Known
    source: str


REFERENCE = Modelled(
    EngineModel(), Known.DECLARED, "declared constants of an 8B model on one large GPU, not measured"
)


def read_engine(path: Path) -> Modelled:
    """Read an engine's constants, or fit them to measured requests.

    Raises:
        InputError: It is neither, or an engine cannot be so.
    """
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        rows = [json.loads(line) for line in lines] if _is_lines(lines) else [json.loads(text)]
        if len(rows) > 1:
            return Modelled(
                fit_engine(rows), Known.MEASURED, f"fitted to {len(rows)} measured requests of {path}"
            )
        _check(rows[0])
        return Modelled(EngineModel(**rows[0]), Known.GIVEN, _described(rows[0], path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"no engine model: {error!r}", path=path, hint=_HINT) from error


def _described(given: dict[str, float], path: Path) -> str:
    rest = [each.name for each in fields(EngineModel) if each.name not in given and each.name not in _EXTRA]
    return f"constants of {path}" + (f"; declared, not given there: {', '.join(rest)}" if rest else "")


def _check(given: Any) -> None:
    if not isinstance(given, dict):
        raise TypeError("no object of constants")
    if wrong := sorted(_wrong(given)):
        raise ValueError(f"cannot be so: {', '.join(wrong)}")


def _wrong(given: dict[str, Any]) -> Iterator[str]:
    """Yield the constants that no engine has: not of their type, not finite, below what they can be."""
    for name, value in given.items():
        default = getattr(EngineModel, name, None)
        whole = isinstance(default, int)
        is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if default is None or not is_number or not (_LEAST.get(name, 0) <= value < _MOST):
            yield f"{name} {value!r}"


def fit_engine(rows: list[dict[str, float]]) -> EngineModel:
    """Fit a step's time, the prompt rate, and what each running request adds, by least squares.

    A lone prompt takes ``step + prompt / rate`` to its first token, a further token ``step + running * sequence``.
    What a long context adds is not measured, and taken for nothing.

    Raises:
        ValueError: There are too few rows, they do not differ, or they say that more work takes less time.
    """
    if len(rows) < _ENOUGH:
        raise ValueError(f"{len(rows)} measured requests, at least {_ENOUGH} are needed")
    ttft = _line([(row["prompt_tokens"], row["ttft_s"]) for row in rows], "prompt_tokens and ttft_s")
    tpot = _line([(row["running"], row["tpot_s"]) for row in rows], "running and tpot_s")
    return replace(
        EngineModel(), step_s=tpot[0], sequence_s=tpot[1], context_s=0.0, prefill_tokens_per_s=1 / ttft[1]
    )


def _line(pairs: list[tuple[float, float]], names: str) -> tuple[float, float]:
    """Return level and slope."""
    x, y = np.asarray(pairs, dtype=float).T
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0:
        raise ValueError(f"{names}: must be numbers, and the first must vary")
    slope, level = np.polyfit(x, y, 1)
    if slope <= 0 or level <= 0:
        raise ValueError(f"{names}: level {level:.3g} s and slope {slope:.3g} s are not those of an engine")
    return float(level), float(slope)


def _is_lines(lines: list[str]) -> bool:
    return len(lines) > 1 and lines[0].rstrip().endswith("}")
