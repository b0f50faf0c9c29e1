"""Recorded requests: when they came and how long prompt and answer were."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtkit.errors import InputError

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")
_FEWEST_GAPS, _COARSE_S, _STAMP_NOISE = 4, 0.5, 0.01
_HINT = (
    "a CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure), or JSON lines with timestamp in ms, "
    "input_length and output_length (Mooncake)"
)


@dataclass(frozen=True)
class TraceRow:
    """One recorded request; times count from the first."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[TraceRow]:
    """Read a trace in order of time.

    Raises:
        InputError: The file is neither of the two formats, or a line of it is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path=path, hint=_HINT) from error
    rows = []
    for number, read in enumerate(_rows(lines, path), start=1):
        if read.prompt_tokens < 1 or read.output_tokens < 0:
            message = (
                f"request {number} has {read.prompt_tokens} prompt and {read.output_tokens} output tokens"
            )
            raise InputError(message, path=path, hint="remove it; a prompt has at least one token")
        rows.append(read)
    if not rows:
        raise InputError("there is no request in it", path=path, hint=_HINT)
    rows.sort(key=lambda row: row.at_s)
    start_s = rows[0].at_s
    return [TraceRow(row.at_s - start_s, row.prompt_tokens, row.output_tokens) for row in rows]


def stamp_step_s(rows: Sequence[TraceRow]) -> float:
    """Return how coarse the times of a trace are: the step that all gaps are multiples of, 0 for none of half a second.

    Mooncake's are of 3 s, give or take a few milliseconds: ten requests in one moment, and nobody until the next.
    """
    moments = sorted({row.at_s for row in rows})
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    if len(gaps) < _FEWEST_GAPS or len(rows) < 2 * len(moments):
        return 0.0
    step_s = statistics.median_low(gaps)
    is_coarse = step_s >= _COARSE_S and all(
        abs(gap - step_s * max(1, round(gap / step_s))) <= _STAMP_NOISE * step_s for gap in gaps
    )
    return round(step_s, 2) if is_coarse else 0.0


def _rows(lines: list[str], path: Path) -> Iterator[TraceRow]:
    is_json = bool(lines) and lines[0].lstrip().startswith("{")
    names = [] if is_json or not lines else next(csv.reader(lines[:1]))
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (names and number == 1):
            continue
        try:
            if is_json:
                yield _json_row(json.loads(line, object_pairs_hook=_once))
            else:
                yield _csv_row(_once(list(zip(names, next(csv.reader([line])), strict=True))))
        except (ValueError, KeyError, TypeError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"line {number} is no request: {why}", path=path, hint=_HINT) from error


def _json_row(record: dict[str, Any]) -> TraceRow:
    at_ms, *lengths = (record[name] for name in ("timestamp", "input_length", "output_length"))
    if type(at_ms) not in {int, float} or not math.isfinite(at_ms):
        raise ValueError(f"timestamp {at_ms!r} is no number of milliseconds")
    for length in lengths:
        if type(length) is not int:
            raise ValueError(f"{length!r} is no whole number of tokens")
    return TraceRow(at_ms / 1000, *lengths)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"it names one thing twice: {', '.join(names)}")
    return dict(pairs)


def _csv_row(record: dict[str, str]) -> TraceRow:
    found = _STAMP.fullmatch(record["TIMESTAMP"].strip())
    if found is None:
        raise ValueError(f"TIMESTAMP {record['TIMESTAMP']!r} is no time")
    # One to nine digits of the second come; Python 3.10 reads six.
    second, digits, zone = found.groups(default="")
    at = datetime.fromisoformat(f"{second}.{digits[:6]:0<6}{zone.replace('Z', '+00:00') or '+00:00'}")
    at_s = (at - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds()
    return TraceRow(at_s, int(record["ContextTokens"]), int(record["GeneratedTokens"]))
