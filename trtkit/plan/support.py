"""Whether a back end runs a format on a GPU, why not, and what comes nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.support import (
    EXPORTED,
    EXPORTED_WEIGHTS,
    KV_SUPPORT,
    MODEL_REFUSALS,
    NEAREST,
    NEAREST_KV,
    QK_NORMS,
    WEIGHT_SUPPORT,
    Row,
    Support,
)
from trtkit.catalog.trtllm import LINES, NEWEST
from trtkit.contract.models import Contract
from trtkit.plan.types import Target

ALGORITHMS = {name: facts.quant_algo for name, facts in WEIGHTS.items()}


@dataclass(frozen=True)
class Verdict:
    """What is known of one format for one target."""

    support: Support
    reason: str = ""
    nearest: str | None = None
    """The nearest format that works there; None when none does, or when this one does."""


def weights_verdict(
    backend: str,
    name: str,
    sm: int,
    line: str,
    architecture: str | None = None,
    *,
    algorithm: str | None = None,
) -> Verdict:
    """Return the verdict on a format of weights; ``line`` is TensorRT-LLM's release line.

    ``algorithm`` is the form of the format where it has several, by its ``quant_algo``.
    """
    verdict = _of_model(backend, name, architecture, algorithm) or _verdict(
        WEIGHT_SUPPORT[backend], name, sm, line
    )
    if verdict.support is not Support.REFUSED and not _has_form(backend, name):
        verdict = Verdict(Support.REFUSED, "trtkit writes no such weights for it")
    nearest = [
        each
        for each in NEAREST[name]
        if _has_form(backend, each) and _of_model(backend, each, architecture, None) is None
    ]
    return _with_nearest(verdict, WEIGHT_SUPPORT[backend], nearest, sm, line)


def _has_form(backend: str, name: str) -> bool:
    """Return whether what a back end reads can hold a format."""
    return backend not in EXPORTED or name in EXPORTED_WEIGHTS


def _of_model(backend: str, name: str, architecture: str | None, algorithm: str | None) -> Verdict | None:
    """Return why a family's engines have not the format at all, None if they may."""
    if backend != "tensorrt" or architecture is None:
        return None
    if name in MODEL_REFUSALS.get(architecture, ()):
        return Verdict(Support.REFUSED, f"TensorRT-LLM's {architecture} engines have no {name} layers")
    by_plugin = (algorithm or ALGORITHMS.get(name) or "").endswith("_PLUGIN")
    if by_plugin and architecture in QK_NORMS:
        reason = f"SmoothQuant's plugin has not the query and key norms of {architecture}"
        return Verdict(Support.REFUSED, f"{reason} (quantization.smoothquant: qdq has)")
    return None


def works_on(contract: Contract, model: ModelConfig, target: Target, name: str) -> bool:
    """Return whether a format of weights is known to work on all GPUs of a target."""
    backend, line = contract.engine.backend.value, target.trtllm or NEWEST
    verdicts = (
        weights_verdict(backend, name, sm, line, model.architecture) for sm in places_of(target).values()
    )
    return all(each.support is Support.WORKS for each in verdicts)


def places_of(target: Target) -> dict[str, int]:
    """Return the compute capabilities by what messages call them."""
    others = {f"SM {sm}": sm for sm in target.sms if sm != target.gpu.sm}
    return {target.gpu.name: target.gpu.sm, **others}


def gpus_of(backend: str, line: str) -> tuple[str, ...]:
    """Return the GPUs of the catalog on which a back end runs anything at all."""
    names = WEIGHT_SUPPORT[backend]
    refused = {
        sm: all(_verdict(names, name, sm, line).support is Support.REFUSED for name in WEIGHTS)
        for sm in {each.sm for each in GPUS.values()}
    }
    return tuple(name for name, gpu in GPUS.items() if not refused[gpu.sm])


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
