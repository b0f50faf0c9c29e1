"""Recorded requests: when they came and how long prompt and answer were."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trtkit.errors import InputError

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


def _rows(lines: list[str], path: Path) -> Iterator[TraceRow]:
    is_json = bool(lines) and lines[0].lstrip().startswith("{")
    names = [] if is_json or not lines else next(csv.reader(lines[:1]))
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (names and number == 1):
            continue
        try:
            if is_json:
                yield _json_row(json.loads(line))
            else:
                yield _csv_row(dict(zip(names, next(csv.reader([line])), strict=True)))
        except (ValueError, KeyError, TypeError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"line {number} is no request: {why}", path=path, hint=_HINT) from error


def _json_row(record: dict[str, float]) -> TraceRow:
    return TraceRow(record["timestamp"] / 1000, int(record["input_length"]), int(record["output_length"]))


def _csv_row(record: dict[str, str]) -> TraceRow:
    # Seven digits of the second, one more than Python 3.10 reads.
    at = datetime.fromisoformat(record["TIMESTAMP"][:26])
    at_s = (at - datetime(1970, 1, 1, tzinfo=at.tzinfo)).total_seconds()
    return TraceRow(at_s, int(record["ContextTokens"]), int(record["GeneratedTokens"]))
