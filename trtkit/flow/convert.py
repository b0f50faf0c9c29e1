"""Conversion without a contract: one source, the options of the command line, one folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.convert import Conversion, prepare
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.source import resolve as resolve_source
from trtkit.engine.store import Store
from trtkit.errors import ContractError
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.recipes import recipe_for

_OPTIONS = {
    "engine.tensor_parallel": "--tp",
    "engine.pipeline_parallel": "--pp",
    "engine.moe_expert_parallel": "--moe-ep",
}
"""Keys of the contract, as the command line calls them."""


@dataclass(frozen=True)
class ConvertOptions:
    """How to write a checkpoint; None takes what the source has."""

    weights: str | None = None
    kv_cache: str | None = None
    dtype: str | None = None
    parallelism: Parallelism = ONE_RANK


def prepare_source(source: str, options: ConvertOptions, store: Store, report: Progress) -> Conversion:
    """Find or fetch a source, and check everything that can be known before weights are read.

    Raises:
        InputError: The source does not fit the options; problems name them.
    """
    checkpoint = HfCheckpoint.open(resolve_source(source, Path.cwd(), store.root / "source", report))
    recipe = recipe_for(quant_plan(options.weights or "none", options.kv_cache or "auto"))
    try:
        return prepare(
            checkpoint,
            dtype=options.dtype or default_dtype(checkpoint.config.dtype),
            recipe=recipe,
            parallelism=options.parallelism,
        )
    except ContractError as error:
        named = [replace(each, key=_OPTIONS.get(each.key, each.key)) for each in error.problems]
        raise ContractError(named) from None


def default_dtype(source: str) -> str:
    """Return the data type that keeps the source's range: 16 bits hold float32's only as bfloat16."""
    return "bfloat16" if source == "float32" else source
