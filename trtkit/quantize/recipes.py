"""Which recipe writes a format."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trtkit.catalog.formats import SMOOTHQUANT, WEIGHTS
from trtkit.checkpoint.recipe import Plain, Recipe
from trtkit.errors import InputError
from trtkit.plan.layers import LayerFormats
from trtkit.plan.types import QuantPlan
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.fp8 import Fp8
from trtkit.quantize.fp8_rowwise import Fp8Rowwise
from trtkit.quantize.int4 import WEIGHTS as INT4
from trtkit.quantize.int4 import Int4
from trtkit.quantize.kv_cache import KvCache, KvScale
from trtkit.quantize.mixed import Mixed
from trtkit.quantize.smoothing import Alphas
from trtkit.quantize.smoothquant import Mode, SmoothQuant
from trtkit.quantize.smoothquant_qdq import SmoothQuantQdq
from trtkit.quantize.weight_only import BakedWeightOnly, WeightLayout

QDQ = "qdq"
_DEFAULT_FORM = next(iter(SMOOTHQUANT))
_RECORDED_ALPHA, _DEFAULT_ALPHA = 0.9, 0.5
"""One recorded scale for a layer's whole input is made by its outliers unless most of them moves into the weights: on
SmolLM2-135M 0.9 has a ninth of the divergence of 0.5. Scales token by token are best between 0.5 and 0.7."""
_VERSION = re.compile(r"\d+\.\d+(\.\w+)?$")
_NO_RANGES = "record them with `trtkit calibrate`, and give its file as --act-range"


def recipe_for(
    plan: QuantPlan,
    *,
    ranges: Path | ActRange | None = None,
    smoothquant: str | None = None,
    alpha: float | Alphas | None = None,
    target_sm: int | None = None,
    trtllm_version: str | None = None,
    kv_scale: str | None = None,
    clamps: bool = True,
    formats: LayerFormats | None = None,
) -> Recipe:
    """Return the recipe of a plan's formats.

    ``ranges`` are activation ranges (see ``act_range``). ``smoothquant`` and ``alpha`` belong to ``int8-sq``,
    ``target_sm`` and ``trtllm_version`` to ``int8-wo`` in the layout of one GPU, ``kv_scale`` to an INT8 KV cache; None
    takes the default.
    Without ``clamps``, ``fp8-rowwise`` leaves activations unbounded, for engines that know no bound. ``formats`` are
    those of single layers; None gives all of them the plan's.

    Raises:
        InputError: This release does not write them, an argument is missing, or nothing would use it.
    """
    _check_used(plan, smoothquant, alpha, target_sm, kv_scale)
    check_version(target_sm, trtllm_version)
    opened = _open(plan, ranges)
    form, share = smoothquant or _DEFAULT_FORM, (_default_alpha(smoothquant) if alpha is None else alpha)
    names = formats.quantized if formats else (plan.weights,)
    recipes = {name: _weights(_only(plan, name), opened, form, share, clamps=clamps) for name in names}
    weights = recipes[names[0]]
    if formats and (len(names) > 1 or formats.plain or formats.has_head):
        weights = Mixed(recipes, formats)
    if target_sm is not None:
        WeightLayout.of(target_sm, trtllm_version)
        weights = BakedWeightOnly(plan, target_sm, trtllm_version)
    if plan.kv_cache_quant_algo is None:
        return weights
    return KvCache(weights, plan.kv_cache_quant_algo, opened, KvScale(kv_scale or KvScale.QKV))


def _default_alpha(smoothquant: str | None) -> float:
    return _RECORDED_ALPHA if smoothquant in {QDQ, Mode.PER_CHANNEL.value} else _DEFAULT_ALPHA


def _only(plan: QuantPlan, weights: str) -> QuantPlan:
    """Return the plan of one of its formats."""
    if weights == plan.weights:
        return plan
    return replace(plan, weights=weights, quant_algo=WEIGHTS[weights].quant_algo)


def _weights(
    plan: QuantPlan, ranges: ActRange | None, smoothquant: str, alpha: float | Alphas, *, clamps: bool
) -> Recipe:
    if plan.weights == "fp8-rowwise":
        return Fp8Rowwise(plan) if clamps else Fp8Rowwise(plan, clamp=None)
    if ranges is not None and plan.weights == "fp8":
        return Fp8(plan, ranges)
    if ranges is not None and plan.weights in INT4:
        return Int4.open(plan, ranges)
    if ranges is not None and plan.weights == "int8-sq":
        if smoothquant == QDQ:
            return SmoothQuantQdq(plan, ranges, alpha)
        return SmoothQuant(plan, ranges, Mode(smoothquant), alpha)
    return Plain(plan)


def takes_ranges(plan: QuantPlan) -> bool:
    """Return whether something is made of activation ranges: an FP8 KV cache can do without and is better with them."""
    return bool(_needing(plan)) or plan.kv_cache_quant_algo is not None


def _needing(plan: QuantPlan) -> list[str]:
    weights = [name for name in plan.formats if name in ("fp8", "int8-sq", *INT4)]
    return weights + (["an INT8 KV cache"] if plan.kv_cache_quant_algo == "INT8" else [])


def _open(plan: QuantPlan, ranges: Path | ActRange | None) -> ActRange | None:
    """Open the ranges if there are users of them."""
    if ranges is not None:
        if not takes_ranges(plan):
            path = ranges.path if isinstance(ranges, ActRange) else ranges
            raise InputError("nothing would use activation ranges", path=path, hint="leave them out")
        return ranges if isinstance(ranges, ActRange) else ActRange.open(ranges)
    if needing := _needing(plan):
        raise InputError(f"activation ranges are needed for {' and '.join(needing)}", hint=_NO_RANGES)
    return None


def _check_used(
    plan: QuantPlan,
    smoothquant: str | None,
    alpha: float | Alphas | None,
    target_sm: int | None,
    kv_scale: str | None,
) -> None:
    if smoothquant not in (None, *SMOOTHQUANT):
        raise InputError(
            f"{smoothquant!r} is no form of SmoothQuant", hint=f"one of {', '.join(SMOOTHQUANT)}"
        )
    each = alpha.values() if isinstance(alpha, Mapping) else () if alpha is None else (alpha,)
    if not all(math.isfinite(value) and 0 <= value <= 1 for value in each):
        raise InputError(f"alpha is {alpha}", hint="from 0 (weights stay) to 1 (activations become even)")
    scales = tuple(each.value for each in KvScale)
    if kv_scale not in (None, *scales):
        raise InputError(f"{kv_scale!r} is nothing a KV scale can cover", hint=f"one of {', '.join(scales)}")
    if "int8-sq" not in plan.formats and (smoothquant, alpha) != (None, None):
        message = f"{' and '.join(plan.formats)} weights are not smoothed"
        raise InputError(message, hint="leave SmoothQuant's options out")
    if plan.kv_cache_quant_algo != "INT8" and kv_scale is not None:
        raise InputError(
            f"there is no such choice for kv_cache {plan.kv_cache}", hint="leave the KV scale out"
        )
    if target_sm is not None and plan.weights != "int8-wo":
        message = f"{plan.weights} weights are the same for every GPU"
        raise InputError(message, hint="leave the target GPU out")
    if target_sm is not None and (plan.overrides or plan.exclude is not None):
        message = "layers of one GPU's layout are not known beside others"
        raise InputError(message, hint="leave the target GPU out")


def check_version(target_sm: int | None, trtllm_version: str | None) -> None:
    """Refuse a version of TensorRT-LLM that nothing would use, or that is none.

    Raises:
        InputError: It is one of these.
    """
    if trtllm_version is None:
        return
    if target_sm is None:
        message = "the version of TensorRT-LLM decides only about the layout for one GPU, and none was given"
        raise InputError(message, hint="leave the version out, or give the target GPU too")
    if not _VERSION.match(trtllm_version):
        raise InputError(
            f"{trtllm_version!r} is no version of TensorRT-LLM", hint="for instance 0.17 or 1.2.1"
        )
