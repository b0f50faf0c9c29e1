"""Conversion without a contract: one source, the options of the command line, one folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.convert import Conversion, prepare
from trtkit.checkpoint.forms.taken_over import TakenOver, take_over
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.recipe import Recipe
from trtkit.checkpoint.source import resolve as resolve_source
from trtkit.checkpoint.storage.quantized import Quantized
from trtkit.engine.store import Store
from trtkit.errors import ContractError, Problem
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.recipes import recipe_for

_OPTIONS = {
    "engine.tensor_parallel": "--tp",
    "engine.pipeline_parallel": "--pp",
    "engine.moe_expert_parallel": "--moe-ep",
    "quantization.weights": "--weights",
    "quantization.kv_cache": "--kv-cache",
    "target_sm": "--target-sm",
}
"""Keys of the contract, as the command line calls them."""


@dataclass(frozen=True)
class ConvertOptions:
    """How to write a checkpoint; None takes what the source has."""

    weights: str | None = None
    kv_cache: str | None = None
    dtype: str | None = None
    parallelism: Parallelism = ONE_RANK
    target_sm: int | None = None
    """Compute capability that INT4 weights of the source are laid out for; None for a form that fits all."""


def prepare_source(source: str, options: ConvertOptions, store: Store, report: Progress) -> Conversion:
    """Find or fetch a source, and check everything that can be known before weights are read.

    Raises:
        InputError: The source does not fit the options; problems name them.
    """
    checkpoint = HfCheckpoint.open(resolve_source(source, Path.cwd(), store.root / "source", report))
    dtype = options.dtype or default_dtype(checkpoint.config.dtype)
    try:
        recipe = choose_recipe(checkpoint, options)
        if isinstance(recipe, TakenOver):
            warnings = (*checkpoint.warnings, *recipe.warnings(checkpoint.tensors.values(), dtype))
            checkpoint = replace(checkpoint, warnings=warnings)
        return prepare(checkpoint, dtype=dtype, recipe=recipe, parallelism=options.parallelism)
    except ContractError as error:
        named = [replace(each, key=_OPTIONS.get(each.key, each.key)) for each in error.problems]
        raise ContractError(named) from None


def choose_recipe(source: HfCheckpoint, options: ConvertOptions) -> Recipe:
    """Return how to write a source: as it is where it is quantized, by the options where it is not.

    Raises:
        InputError: The source cannot be written as the options say.
    """
    weights, kv_cache, target_sm = options.weights, options.kv_cache, options.target_sm
    if isinstance(source.storage, Quantized):
        return take_over(source.storage, weights=weights, kv_cache=kv_cache, target_sm=target_sm)
    if target_sm is not None:
        message = "the source has no INT4 weights, which alone depend on the GPU"
        raise ContractError([Problem(message, key="target_sm", hint="leave it out")])
    return recipe_for(quant_plan(weights or "none", kv_cache or "auto"))


def default_dtype(source: str) -> str:
    """Return the data type that keeps the source's range: 16 bits hold float32's only as bfloat16."""
    return "bfloat16" if source == "float32" else source
