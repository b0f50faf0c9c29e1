"""Whether a back end runs a format on a GPU, why not, and what comes nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtkit.catalog.support import (
    KV_SUPPORT,
    MODEL_REFUSALS,
    NEAREST,
    NEAREST_KV,
    WEIGHT_SUPPORT,
    Row,
    Support,
)
from trtkit.catalog.trtllm import LINES


@dataclass(frozen=True)
class Verdict:
    """What is known of one format for one target."""

    support: Support
    reason: str = ""
    nearest: str | None = None
    """The nearest format that works there; None when none does, or when this one does."""


def weights_verdict(backend: str, name: str, sm: int, line: str, architecture: str | None = None) -> Verdict:
    """Return the verdict on a format of weights; ``line`` is TensorRT-LLM's release line."""
    refused = MODEL_REFUSALS.get(architecture or "", ()) if backend == "tensorrt" else ()
    if name in refused:
        reason = f"TensorRT-LLM's {architecture} engines have no {name} layers"
        verdict = Verdict(Support.REFUSED, reason)
    else:
        verdict = _verdict(WEIGHT_SUPPORT[backend], name, sm, line)
    nearest = [each for each in NEAREST[name] if each not in refused]
    return _with_nearest(verdict, WEIGHT_SUPPORT[backend], nearest, sm, line)


def kv_verdict(backend: str, name: str, sm: int, line: str) -> Verdict:
    """Return the verdict on a format of the KV cache."""
    rows = KV_SUPPORT[backend]
    return _with_nearest(_verdict(rows, name, sm, line), rows, NEAREST_KV[name], sm, line)


def table(rows: Mapping[str, tuple[Row, ...]], sms: Sequence[int], line: str) -> list[tuple[str, ...]]:
    """Return one row for each back end and format: a word for each of ``sms``."""
    found = []
    for backend, known in rows.items():
        for name in dict.fromkeys(name for row in known for name in row.formats):
            words = (_verdict(known, name, sm, line).support.value for sm in sms)
            found.append((backend, name, *words))
    return found


def _verdict(rows: Sequence[Row], name: str, sm: int, line: str) -> Verdict:
    for row in rows:
        if name in row.formats and _applies(row, sm, line):
            return Verdict(row.support, row.reason)
    return Verdict(Support.REFUSED, f"nothing is known of {name} on SM {sm}")


def _applies(row: Row, sm: int, line: str) -> bool:
    if not row.sm[0] <= sm <= row.sm[1] or (row.sms is not None and sm not in row.sms):
        return False
    if row.lines is None:
        return True
    first, last = map(LINES.index, row.lines)
    return first <= LINES.index(line) <= last


def _with_nearest(verdict: Verdict, rows: Sequence[Row], names: Sequence[str], sm: int, line: str) -> Verdict:
    if verdict.support is not Support.REFUSED:
        return verdict
    works = (name for name in names if _verdict(rows, name, sm, line).support is Support.WORKS)
    return Verdict(verdict.support, verdict.reason, next(works, None))
