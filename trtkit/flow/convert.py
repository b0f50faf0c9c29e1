"""Conversion without a contract: one source, the options of the command line, one folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.convert import Conversion, ConversionReport, prepare
from trtkit.checkpoint.forms.taken_over import TakenOver, plain_layers, take_over
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export.export import HfExportReport, convert_to_hf
from trtkit.checkpoint.hf_export.folder import check_free
from trtkit.checkpoint.hf_export.formats import find_format
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.recipe import Recipe
from trtkit.checkpoint.source import resolve as resolve_source
from trtkit.checkpoint.storage.quantized import Quantized
from trtkit.engine.store import Store
from trtkit.errors import ContractError, InputError, Problem, Severity
from trtkit.flow.words import contract_words
from trtkit.plan.layers import head_warnings, layer_formats
from trtkit.plan.resolve import quant_plan
from trtkit.plan.types import QuantPlan
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.fingerprint import FINGERPRINT
from trtkit.quantize.range_warnings import range_warnings
from trtkit.quantize.recipes import check_version, recipe_for
from trtkit.quantize.smoothing import Alphas

_OPTIONS = {
    "engine.tensor_parallel": "--tp",
    "engine.pipeline_parallel": "--pp",
    "engine.moe_expert_parallel": "--moe-ep",
    "quantization.weights": "--weights",
    "quantization.quant_algo": "--weights",
    "quantization.kv_cache_quant_algo": "--kv-cache",
    "quantization.kv_cache": "--kv-cache",
    "quantization.exclude_modules": "--exclude",
    "quantization.exclude": "--exclude",
    "quantization.overrides": "--override",
    "target_sm": "--target-sm",
    "trtllm_version": "--trtllm-version",
}
"""Keys of the contract and of a checkpoint's configuration, as the command line calls them; longer ones first."""


FORMS = ("trtllm", "hf")
"""TensorRT-LLM's checkpoint, or a Hugging Face folder in ModelOpt's form."""


@dataclass(frozen=True)
class ConvertOptions:
    """How to write a checkpoint; None takes what the source has."""

    weights: str | None = None
    kv_cache: str | None = None
    dtype: str | None = None
    parallelism: Parallelism = ONE_RANK
    target_sm: int | None = None
    """Compute capability that weights are laid out for; None for a form that fits all."""
    trtllm_version: str | None = None
    act_range: Path | ActRange | None = None
    """Recorded activation ranges, which ``int8-sq``, ``fp8`` and an INT8 KV cache need."""
    smoothquant: str | None = None
    alpha: float | Alphas | None = None
    kv_scale: str | None = None
    exclude: tuple[str, ...] | None = None
    """Patterns of layers that stay plain, instead of the loader's own list."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Patterns of layers, and the format that these have."""
    form: str = FORMS[0]

    @property
    def recipe_arguments(self) -> dict[str, Any]:
        """What was given of :func:`~trtkit.quantize.recipes.recipe_for`'s arguments."""
        given = {
            "ranges": self.act_range,
            "smoothquant": self.smoothquant,
            "alpha": self.alpha,
            "target_sm": self.target_sm,
            "trtllm_version": self.trtllm_version,
            "kv_scale": self.kv_scale,
        }
        return {name: value for name, value in given.items() if value is not None}


def prepare_source(source: str, options: ConvertOptions, store: Store, report: Progress) -> Conversion:
    """Find or fetch a source, and check everything that can be known before weights are read.

    Raises:
        InputError: The source does not fit the options; problems name them.
    """
    checkpoint = HfCheckpoint.open(resolve_source(source, Path.cwd(), store.root / "source", report))
    dtype = options.dtype or default_dtype(checkpoint.config.dtype)
    with _options():
        recipe = choose_recipe(checkpoint, options)
        if isinstance(recipe, TakenOver):
            warnings = (*checkpoint.warnings, *recipe.warnings(checkpoint.tensors.values(), dtype))
            checkpoint = replace(checkpoint, warnings=warnings)
        conversion = prepare(
            checkpoint,
            dtype=dtype,
            recipe=recipe,
            parallelism=options.parallelism,
            notes=notes_of(options.act_range),
        )
        warnings = (*checkpoint.warnings, *_head_warnings(checkpoint, options))
        warnings += (*warnings_of(checkpoint, options, dtype),)
        return replace(conversion, source=replace(checkpoint, warnings=warnings))


@contextmanager
def _options() -> Iterator[None]:
    """Name options for keys of the contract, and of a checkpoint's configuration, in what is raised in the block."""
    try:
        with contract_words(_OPTIONS):
            yield
    except ContractError as error:
        named = [replace(each, key=_OPTIONS.get(each.key, each.key)) for each in error.problems]
        raise ContractError(named) from None


def _head_warnings(source: HfCheckpoint, options: ConvertOptions) -> list[Problem]:
    if isinstance(source.storage, Quantized):
        return []
    found = head_warnings(source.config, _plan_of(options))
    return [replace(each, key=_OPTIONS[each.key]) for each in found]


def notes_of(act_range: Path | ActRange | None) -> dict[str, Any]:
    """Return what a checkpoint keeps of the ranges that it is made by: the text that they were recorded with."""
    if act_range is None:
        return {}
    ranges = act_range if isinstance(act_range, ActRange) else ActRange.open(act_range)
    said = {} if ranges.is_awaited else ranges.said
    return {FINGERPRINT: said[FINGERPRINT]} if FINGERPRINT in said else {}


def warnings_of(source: HfCheckpoint, options: ConvertOptions, dtype: str) -> list[Problem]:
    """Return what a conversion that has been checked should make one think about."""
    if isinstance(source.storage, Quantized):
        return []
    plan = _plan_of(options)
    found = range_warnings(source, plan, options.act_range, dtype)
    formats = layer_formats(source.config, plan)
    if formats and len(formats.quantized) > 1:
        message = (
            "TensorRT-LLM of mid-2025 cannot load layers of several formats, and none has been run on a GPU"
        )
        hint = "compare an answer before you serve it"
        found.append(Problem(message, "overrides", hint, severity=Severity.WARNING))
    return found


def conversion_warnings(facts: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what the facts of a conversion in a build should make one think about."""
    for each in facts.get("warnings", ()):
        key = f"quantization.{each['key'].removeprefix('quantization.')}".rstrip(".")
        yield Problem(each["message"], key, each["hint"], severity=Severity.WARNING)


def _plan_of(options: ConvertOptions) -> QuantPlan:
    plan = quant_plan(
        options.weights or "none",
        options.kv_cache or "auto",
        exclude=options.exclude,
        overrides=options.overrides,
    )
    return replace(plan, smoothquant=options.smoothquant, kv_scale=options.kv_scale)


def choose_recipe(source: HfCheckpoint, options: ConvertOptions) -> Recipe:
    """Return how to write a source: as it is where it is quantized, by the options where it is not.

    Raises:
        InputError: The source cannot be written as the options say.
    """
    weights, kv_cache, arguments = options.weights, options.kv_cache, options.recipe_arguments
    if not isinstance(source.storage, Quantized):
        clamps = options.form == FORMS[0]
        plan = _plan_of(options)
        formats = layer_formats(source.config, plan)
        return recipe_for(plan, clamps=clamps, formats=formats, **arguments)
    target = {name: arguments.pop(name, None) for name in ("target_sm", "trtllm_version")}
    if options.exclude is not None or options.overrides:
        arguments["exclude or overrides"] = True
    if arguments:
        message = f"the source is quantized already, and nothing would use {', '.join(arguments)}"
        raise InputError(
            message, path=source.folder, hint="leave them out, or give the model that it was made from"
        )
    check_version(**target)
    plain = plain_layers(source)
    return take_over(source.storage, weights=weights, kv_cache=kv_cache, plain=plain, **target)


def check_target(conversion: Conversion, out: Path, form: str) -> None:
    """Make sure that :func:`run` would not refuse it.

    Raises:
        InputError: It cannot be written in that form, or not there.
        EnvironmentLacks: The disk is too full.
    """
    if form != FORMS[0]:
        _check_exportable(conversion)
        check_free(out)
    conversion.check(out)


def run(conversion: Conversion, out: Path, form: str, report: Progress) -> ConversionReport | HfExportReport:
    """Write a prepared conversion in one of :data:`FORMS`.

    Raises:
        InputError: It cannot be written in that form, or not there; nothing was written.
        EnvironmentLacks: The disk is too full.
    """
    if form == FORMS[0]:
        return conversion.run(out, report)
    _check_exportable(conversion)
    recipe, dtype = conversion.recipe, conversion.layout.dtype
    return convert_to_hf(conversion.source, out, dtype=dtype, recipe=recipe, progress=report)


def _check_exportable(conversion: Conversion) -> None:
    ranks = conversion.layout.ranks.world
    if ranks > 1:
        message = f"a Hugging Face folder is for any number of ranks, and {ranks} were asked for"
        raise InputError(message, hint="leave --tp and --pp out: programs that read it divide it themselves")
    with _options():
        find_format(conversion.recipe.quantization, file="")


def default_dtype(source: str) -> str:
    """Return the data type that keeps the source's range: 16 bits hold float32's only as bfloat16."""
    return "bfloat16" if source == "float32" else source
