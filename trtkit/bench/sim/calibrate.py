"""An engine's constants from what a run has measured."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from trtkit.bench.sim.engine import EngineModel
from trtkit.errors import InputError

_ENOUGH = 20
_HINT = (
    f"a JSON object with any of: {', '.join(field.name for field in fields(EngineModel))}; or at least {_ENOUGH} JSON "
    'lines of requests that were measured: {"prompt_tokens": 1200, "ttft_s": 0.08, "tpot_s": 0.011, "running": 7}'
)


def read_engine(path: Path) -> EngineModel:
    """Read an engine's constants, or fit them to measured requests; what is not given stays as declared.

    Raises:
        InputError: It is neither, or an engine cannot be so.
    """
    try:
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        rows = [json.loads(line) for line in lines] if _is_lines(lines) else [json.loads(text)]
        model = fit_engine(rows) if len(rows) > 1 else EngineModel(**rows[0])
        constants = [getattr(model, field.name) for field in fields(model)]
        valid = all(isinstance(value, int | float) and 0 <= value < 1e12 for value in constants)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"no engine model: {error!r}", path=path, hint=_HINT) from error
    if not valid or not min(
        model.step_s, model.prefill_tokens_per_s, model.max_num_tokens, model.max_batch_size
    ):
        raise InputError("every constant must be a number above 0", path=path, hint=_HINT)
    return model


def fit_engine(rows: list[dict[str, float]]) -> EngineModel:
    """Fit a step's time, the prompt rate, and what each running request adds, by least squares.

    A lone prompt takes ``step + prompt / rate`` to its first token, a further token ``step + running * sequence``.

    Raises:
        ValueError: There are too few rows, they do not differ, or they say that more work takes less time.
    """
    if len(rows) < _ENOUGH:
        raise ValueError(f"{len(rows)} measured requests, at least {_ENOUGH} are needed")
    ttft = _line([(row["prompt_tokens"], row["ttft_s"]) for row in rows], "prompt_tokens and ttft_s")
    tpot = _line([(row["running"], row["tpot_s"]) for row in rows], "running and tpot_s")
    return replace(EngineModel(), step_s=tpot[0], sequence_s=tpot[1], prefill_tokens_per_s=1 / ttft[1])


def _line(pairs: list[tuple[float, float]], names: str) -> tuple[float, float]:
    """Return level and slope."""
    x, y = np.asarray(pairs, dtype=float).T
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0:
        raise ValueError(f"{names}: must be numbers, and the first must vary")
    slope, level = np.polyfit(x, y, 1)
    if slope <= 0 or level < 0:
        raise ValueError(f"{names}: level {level:.3g} s and slope {slope:.3g} s are not those of an engine")
    return float(level), float(slope)


def _is_lines(lines: list[str]) -> bool:
    return len(lines) > 1 and lines[0].rstrip().endswith("}")
