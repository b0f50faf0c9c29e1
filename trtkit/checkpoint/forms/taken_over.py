"""The recipe for sources that are quantized already: every layer keeps its numbers, in the engine's form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtkit.catalog.formats import KV_CACHE
from trtkit.catalog.schemes import DEFAULT_EXCLUDED, KV_CACHE_SCALE, SCHEMES, LayerPart, Part, Scheme
from trtkit.checkpoint.forms.baked import BakedLayout, baked_int4
from trtkit.checkpoint.forms.fit import fit_problems
from trtkit.checkpoint.forms.int4 import check_symmetric, portable_int4
from trtkit.checkpoint.forms.per_row import fp8_rows, int8_rows
from trtkit.checkpoint.forms.per_tensor import per_tensor
from trtkit.checkpoint.forms.rows import Made, Rows, whole
from trtkit.checkpoint.forms.scales import one, read_scale
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.jobs import Copy, Job, Layout, Target
from trtkit.checkpoint.mapping import MappedTensor, map_tensors
from trtkit.checkpoint.safetensors import TensorInfo
from trtkit.checkpoint.storage.quantized import AUTO, Quantized
from trtkit.checkpoint.storage.storage import Stored
from trtkit.errors import ContractError, Problem, Severity

_LEAVE_OUT = "leave it out, or give the checkpoint that the source was quantized from"
BAKED_ALGORITHM = "W4A16_GPTQ"
_FORMS: dict[str, Callable[[MappedTensor, Layout], Mapping[str, Callable[[], Rows]]]] = {
    "FP8": per_tensor,
    "FP8_PER_CHANNEL_PER_TOKEN": fp8_rows,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": int8_rows,
}


def take_over(
    storage: Quantized,
    *,
    weights: str | None = None,
    kv_cache: str | None = None,
    target_sm: int | None = None,
    trtllm_version: str | None = None,
    plain: Sequence[str] = (),
) -> TakenOver:
    """Return the recipe for a quantized source; None asks for what it has, and ``auto`` leaves its KV scales out.

    ``plain`` are the engine's linear layers that the source has left as they were.

    Raises:
        ContractError: Something else is asked for, or the GPU's layout is not known.
    """
    problems = _layout_problems(storage, target_sm, trtllm_version)
    if weights is not None and weights not in storage.weights:
        message = f"{weights!r} is asked for, and the source has {storage.weights[0]!r} ({storage.method})"
        problems.append(Problem(message, key="quantization.weights", hint=_LEAVE_OUT))
    if kv_cache not in {None, AUTO, storage.kv_cache}:
        has = "none" if storage.kv_cache == AUTO else f"those of {storage.kv_cache!r}"
        message = f"{kv_cache!r} is asked for, and of scales for the KV cache the source has {has}"
        problems.append(Problem(message, key="quantization.kv_cache", hint=_LEAVE_OUT))
    if problems:
        raise ContractError(problems)
    kept = storage if kv_cache is None else replace(storage, kv_cache=kv_cache)
    return TakenOver(kept, target_sm, trtllm_version, tuple(plain))


def plain_layers(source: HfCheckpoint) -> tuple[str, ...]:
    """Return the linear layers that a quantized source has left plain, by the engine's names.

    Raises:
        ContractError: Its tensors are not those that its configuration says.
    """
    mapped = map_tensors(source.config, source.tensors, file=str(source.folder), storage=source.storage)
    return tuple(each.module for each in mapped if each.target.rule.is_linear and each.is_plain)


def _layout_problems(storage: Quantized, target_sm: int | None, trtllm_version: str | None) -> list[Problem]:
    if target_sm is None and storage.needs_target:
        message = "asymmetric INT4 of this kind is written in the layout of one GPU family only"
        return [Problem(message, key="target_sm", hint="name the GPU's, 80 for instance")]
    if target_sm is None:
        message = "the form that fits every GPU fits every version too"
        return [Problem(message, key="trtllm_version", hint="leave it out")] if trtllm_version else []
    if storage.packing is None:
        message = f"{storage.weights[0]} weights have no layout that depends on the GPU"
        return [Problem(message, key="target_sm", hint="leave it out")]
    if BakedLayout.of(target_sm, trtllm_version) is None:
        only = " but for TensorRT-LLM 0.17" if target_sm == 90 else ""
        message = f"the layout of INT4 weights for SM {target_sm} is not known{only}"
        return [Problem(message, key="target_sm", hint="leave it out: the form without it fits every GPU")]
    return []


@dataclass(frozen=True)
class TakenOver:
    """Takes over what a storage holds."""

    storage: Quantized
    target_sm: int | None = None
    """Bakes INT4 weights for GPUs of this compute capability (80 for 8.0); None writes what fits every GPU."""
    trtllm_version: str | None = None
    """The version that builds the engine, where the layout depends on it."""
    plain: tuple[str, ...] = ()
    """Linear layers that stay plain."""

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The algorithm with what its layers have."""
        storage = self.storage
        names: dict[str, Any] = {
            "quant_algo": self._algorithm,
            "kv_cache_quant_algo": KV_CACHE[storage.kv_cache],
        }
        if storage.packing is not None:
            zero = storage.has_zero_point or self._baked is not None
            names |= {"group_size": storage.group_size, "has_zero_point": zero, "pre_quant_scale": not zero}
        if storage.clamp is not None:
            names["clamp_val"] = [-storage.clamp, storage.clamp]
        if self.plain:
            names["exclude_modules"] = [*DEFAULT_EXCLUDED, *self.plain]
        return names

    @property
    def baked_for(self) -> Mapping[str, Any]:
        """What the bytes of the weights depend on; empty when they fit every GPU."""
        if self._baked is None:
            return {}
        version = {"trtllm_version": self.trtllm_version} if self._baked is BakedLayout.TRANSPOSED else {}
        return {"target_sm": self.target_sm, "layout": self._baked.value, **version}

    def warnings(self, tensors: Iterable[TensorInfo], dtype: str) -> list[Problem]:
        """Return what nobody has seen run yet, and what of the scales does not fit ``dtype``."""
        texts = [f"{key} is not known and has no effect" for key in self.storage.unknown]
        if self.storage.has_zero_point and not self._baked:
            texts.append(
                "INT4 with zero points is written as W4A16_AWQ with `zero` tensors, which follows from "
                "TensorRT-LLM's loader and has not been run on a GPU: compare an answer before you serve it"
            )
        scales = {info.dtype for info in tensors if info.name.endswith(("scales", "weight_scale"))}
        if self.storage.packing is not None and dtype == "bfloat16" and "float16" in scales:
            texts.append("scales are float16, and a bfloat16 engine rounds them to 8 bits: use float16")
        return [Problem(text, key="quantization", severity=Severity.WARNING) for text in texts]

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Return why the engine cannot have these layers."""
        return list(fit_problems(self.storage, self._algorithm, mapped, layout, self.plain))

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return one job per tensor of the checkpoint."""
        jobs = [job for tensor in mapped for job in self._tensor_jobs(tensor, layout)]
        constants = [part for part in self._scheme.layer_parts if part.applies(self.quantization)]
        for layer in range(layout.config.num_layers):
            jobs += [Made(layout.layer_part(layer, part), self._constant(part)) for part in constants]
        return jobs

    def _tensor_jobs(self, tensor: MappedTensor, layout: Layout) -> Iterator[Job]:
        if not tensor.target.rule.is_linear or tensor.is_plain:
            yield Copy(tensor, layout.whole(tensor.target), layout.config)
            return
        rows = self._rows(tensor, layout)
        for part in self._scheme.parts:
            if part.applies(tensor.target.name, self.quantization):
                yield Made(self._target(tensor, part, layout), rows[part.suffix])
        caches = [
            (source, key)
            for source in tensor.sources
            for key in ("k_scale", "v_scale")
            if key in source.parts and self.storage.kv_cache != AUTO
        ]
        if caches and tensor.target.layer is not None:
            target = layout.layer_part(tensor.target.layer, KV_CACHE_SCALE)
            yield Made(target, lambda: whole(one(_cache_scale(caches))))

    def _rows(self, tensor: MappedTensor, layout: Layout) -> Mapping[str, Callable[[], Rows]]:
        packing = self.storage.packing
        if packing is None:
            return _FORMS[self._algorithm](tensor, layout)
        if self._baked is not None:
            rows = baked_int4(tensor, layout, packing, self._baked)
        else:
            rows = portable_int4(tensor, layout, packing)
        if self.storage.has_zero_point:
            return rows

        def symmetric() -> Rows:
            check_symmetric(tensor, packing)
            return rows["weight"]()

        return {**rows, "weight": symmetric}

    def _target(self, tensor: MappedTensor, part: Part, layout: Layout) -> Target:
        target = layout.part(tensor.target, part, self.storage.group_size or 1)
        if self._baked is None or part.suffix != "weight":
            return target
        weights = layout.whole(tensor.target).shards
        shapes = tuple(shard.shape for shard in target.shards)
        shards = tuple(self._baked.shard(shard) for shard in weights)
        return Target(target.name, target.dtype, target.stage, shards, shapes)

    def _constant(self, part: LayerPart) -> Callable[[], Rows]:
        if part.when == "clamp_val":
            return lambda: whole(np.array(self.quantization["clamp_val"], np.float32))
        return lambda: whole(np.ones(part.shape, np.float32))

    @property
    def _baked(self) -> BakedLayout | None:
        if self.target_sm is None or self.storage.packing is None:
            return None
        return BakedLayout.of(self.target_sm, self.trtllm_version)

    @property
    def _algorithm(self) -> str:
        return BAKED_ALGORITHM if self._baked else self.storage.quant_algo

    @property
    def _scheme(self) -> Scheme:
        return SCHEMES[self._algorithm]


def _cache_scale(parts: Sequence[tuple[Stored, str]]) -> np.float32:
    """Return the one factor that the engine has for K and V; with the larger one no value is cut off."""
    return max(read_scale(source, key).reshape(-1)[0] for source, key in parts)
