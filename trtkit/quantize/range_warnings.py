"""What should make one think of recorded ranges: values that no model has, and scales that waste their steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from trtkit.catalog.parallel import ONE_RANK
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.mapping import MappedTensor, map_tensors
from trtkit.checkpoint.recipe import Plain
from trtkit.errors import Problem, Severity
from trtkit.plan.layers import layer_formats
from trtkit.plan.types import QuantPlan
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.kv_cache import KvCache, KvScale, projections
from trtkit.quantize.linear import Linear, linears, local_name
from trtkit.quantize.mixed import as_quantized

_SCALED = ("fp8", "int8-sq", "w4a8-awq")
"""Formats that quantize activations by what was recorded of them."""
_ABSURD, _OUTLIER, _LEAST_LAYERS = 1e6, 10.0, 3
"""Activations of language models are known up to some 10,000; a layer is compared with the median of its kind."""
_FEW_STEPS, _HALF = 16.0, 0.5
_AGAIN = "look at the samples and record the ranges again, or let the quality gate decide"
_CACHE_HINT = "let the quality gate decide, or use kv_cache: auto"


def range_warnings(
    source: HfCheckpoint, plan: QuantPlan, ranges: Path | ActRange | None, dtype: str
) -> list[Problem]:
    """Return what should make one think of ranges that have been checked for this source."""
    if ranges is None:
        return []
    opened = ranges if isinstance(ranges, ActRange) else ActRange.open(ranges)
    mapped = map_tensors(source.config, source.tensors, file=str(source.folder), storage=source.storage)
    layout = Layout(source.config, dtype, ONE_RANK)
    found = list(_cache_warnings(plan, opened, mapped, layout))
    if any(name in _SCALED for name in plan.formats):
        biased = {
            local_name(each).removesuffix(".bias") for each in mapped if each.target.name.endswith(".bias")
        }
        formats = layer_formats(source.config, plan)
        scaled = as_quantized(mapped, formats, _SCALED) if formats else mapped
        found += _input_warnings(opened, linears(scaled, layout), biased)
    if not any(name.endswith("|w") for name in opened.tensors):
        message = "has no |w, so that nobody can tell whether the ranges are of this model"
        found.append(_warning(message, "", "record them with `trtkit calibrate`"))
    return [
        Problem(each.message, each.key, each.hint, str(opened.path), severity=each.severity) for each in found
    ]


def _input_warnings(ranges: ActRange, layers: Sequence[Linear], biased: set[str]) -> Iterator[Problem]:
    kinds: dict[str, dict[str, float]] = defaultdict(dict)
    for linear in layers:
        module = linear.tensor.target.name.removesuffix(".weight")
        kinds[linear.name][module] = float(ranges.inputs([linear]).max())
    each = {module: largest for kind in kinds.values() for module, largest in kind.items()}
    absurd = {module: largest for module, largest in each.items() if largest > _ABSURD}
    if absurd:
        yield _warning(f"no model is known to have such inputs: {_list(absurd, '{:g}')}", "", _AGAIN)
    outliers = {
        module: largest / median(kind.values())
        for kind in kinds.values()
        if len(kind) >= _LEAST_LAYERS
        for module, largest in kind.items()
        if largest > _OUTLIER * median(kind.values())
    }
    if outliers:
        message = f"inputs are far above the median of their kind: {_list(outliers, '{:.0f} times')}"
        yield _warning(message, "", "leave these layers plain (exclude), or let the quality gate decide")
    unheard = {each.name for each in layers if each.name not in biased and not _explains(ranges, each)}
    if unheard:
        message = f"outputs of {', '.join(sorted(unheard))} are larger than inputs and weights can make them"
        yield _warning(message, "", _AGAIN)


def _explains(ranges: ActRange, linear: Linear) -> bool:
    """Return whether ``amax(y) <= sum(amax(x)) * amax(w)``, which holds for every layer without a bias."""
    found = ranges.reaches(linear)
    if found is None or linear.tensor.target.rule.per_expert:
        return True
    output, weight = found
    # Rounding to 16 bits stays far below 1 %.
    return output <= 1.01 * float(ranges.inputs([linear]).sum(dtype=np.float64)) * weight


def _cache_warnings(
    plan: QuantPlan, ranges: ActRange, mapped: Sequence[MappedTensor], layout: Layout
) -> Iterator[Problem]:
    """Yield what one scale for K and V costs one of them, layer by layer."""
    if plan.kv_cache_quant_algo is None:
        return
    covers = KvScale(plan.kv_scale or KvScale.QKV)
    cache = KvCache(Plain(plan), plan.kv_cache_quant_algo, ranges, covers)
    sides = {
        f"layer {linear.tensor.target.layer}": (linear, cache.largest(linear))
        for linear in projections(mapped, layout)
    }
    key = "kv_cache"
    if plan.kv_cache_quant_algo == "FP8":
        full = {name: max(pair) / 448 for name, (_, pair) in sides.items() if max(pair) / 448 > _HALF}
        if full:
            message = f"K or V take more than half of what FP8 holds: {_list(full, '{:.2f} times 448')}"
            yield _warning(message, key, _CACHE_HINT)
        return
    for place, side in enumerate("KV"):
        steps = {name: pair[place] / cache.scale(linear) for name, (linear, pair) in sides.items()}
        few = {name: count for name, count in steps.items() if count < _FEW_STEPS}
        if few:
            message = (
                f"the one scale that K and V share leaves {side} few of 127 steps: {_list(few, '{:.1f}')}"
            )
            yield _warning(message, key, "use kv_cache: fp8 or auto, or let the quality gate decide")


def _list(values: Mapping[str, float], form: str, most: int = 8) -> str:
    texts = [f"{name} {form.format(value)}" for name, value in values.items()]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _warning(message: str, key: str, hint: str) -> Problem:
    return Problem(message, key, hint, severity=Severity.WARNING)
