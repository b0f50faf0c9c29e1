"""Which tensors an exported folder has, and where each one comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from trtkit.catalog.architectures.architecture import TensorRule, When
from trtkit.catalog.parallel import ONE_RANK
from trtkit.catalog.schemes import KV_CACHE_SCALE, SCHEMES
from trtkit.checkpoint.cast import cast, cast_chunks
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export.folding import SMOOTHED, folded, is_folded, norm_scales
from trtkit.checkpoint.hf_export.formats import FORMATS, PREQUANT
from trtkit.checkpoint.hf_export.tensors import HfTensor, split_part
from trtkit.checkpoint.jobs import Layout, plain_jobs
from trtkit.checkpoint.mapping import MappedTensor, map_tensors, tied_copies
from trtkit.checkpoint.safetensors import Array, TensorInfo, TensorSpec, numpy_dtype
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.errors import InputError


@dataclass(frozen=True)
class Contents:
    """A checkpoint and the source that it was made from: quantized layers from the one, the rest from the other."""

    checkpoint: TrtllmCheckpoint
    source: HfCheckpoint

    @property
    def dtype(self) -> str:
        """Data type of what is not quantized."""
        return str(self.checkpoint.config["dtype"])

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The checkpoint's block, as far as it holds for the export: layers that follow no norm always have a scale."""
        block = self.checkpoint.config.get("quantization") or {}
        names = {"quant_algo": None, "kv_cache_quant_algo": None}
        return {**names, **block, **({"pre_quant_scale": True} if self._has_prequant else {})}

    @cached_property
    def mapped(self) -> list[MappedTensor]:
        """The tensors of the checkpoint, each with its sources."""
        source = self.source
        return map_tensors(source.config, source.tensors, file=str(source.folder), storage=source.storage)

    @cached_property
    def scales(self) -> dict[str, Array]:
        """What norms have to be multiplied with."""
        return norm_scales(self.mapped, self.checkpoint)

    def excluded(self) -> list[str]:
        """Return the linear modules that are not quantized, as the source names them."""
        tables = [
            source.name
            for tensor in self.mapped
            if not self._is_quantized(tensor) and not tensor.target.name.endswith("embedding.weight")
            for source in tensor.sources
            if len(source.shape) == 2 and tensor.target.rule.when is not When.TIED
        ]
        heads = tied_copies(self.source.config, self.source.tensors)
        return [name.removesuffix(".weight") for name in (*heads, *tables)]

    def tensors(self) -> list[HfTensor]:
        """Return what to write, each name once, in the order of the layers.

        Raises:
            InputError: A tensor that is not quantized differs from the source's, or a layer cannot be taken apart.
        """
        return list({tensor.spec.name: tensor for tensor in self._all()}.values())

    @property
    def _algorithm(self) -> str | None:
        return (self.checkpoint.config.get("quantization") or {}).get("quant_algo")

    @property
    def _has_prequant(self) -> bool:
        return PREQUANT in FORMATS[self._algorithm].parts

    def _all(self) -> Iterator[HfTensor]:
        for tensor in self.mapped:
            is_plain = all(source.is_plain for source in tensor.sources)
            if self._is_quantized(tensor) or (tensor.target.rule.is_linear and not is_plain):
                yield from self._linear(tensor)
            else:
                yield from self._unquantized(tensor)
            if self.quantization["kv_cache_quant_algo"] and tensor.target.name.endswith("qkv.weight"):
                yield from self._kv_scales(tensor)

    def _is_quantized(self, tensor: MappedTensor) -> bool:
        """Return whether a tensor is the weight of a layer that is not left plain."""
        module = tensor.target.name.removesuffix(".weight")
        return tensor.target.rule.is_linear and self.checkpoint.block_of(module).get("quant_algo") is not None

    def _linear(self, tensor: MappedTensor) -> Iterator[HfTensor]:
        """Take a layer apart; its activation scales stay with it when there is no norm before it."""
        name, form = tensor.target.name, FORMATS[self._algorithm]
        for part in SCHEMES[self._algorithm].parts:
            if part.applies(name, self.checkpoint.config["quantization"]) and not (
                part.suffix == PREQUANT and is_folded(tensor)
            ):
                info = self.checkpoint.info(name.removesuffix("weight") + part.suffix)
                dtype = form.weight_dtype if part.suffix == "weight" else None
                suffix = form.parts[part.suffix]
                yield from split_part(tensor, part, info, self.source.config, suffix=suffix, dtype=dtype)
        lacks = name.removesuffix("weight") + PREQUANT not in self.checkpoint
        if self._has_prequant and lacks and not is_folded(tensor):
            # Loaders ask for it.
            for source in tensor.sources:
                ones = np.ones(source.shape[-1], numpy_dtype(self.dtype))
                yield _constant(source.name.removesuffix("weight") + form.parts[PREQUANT], ones)

    def _kv_scales(self, qkv: MappedTensor) -> Iterator[HfTensor]:
        """Give K and V their one scale."""
        layer = qkv.target.name.split("attention.")[0]
        scale = self.checkpoint.tensor(layer + KV_CACHE_SCALE.name)
        attention = qkv.sources[0].name.rsplit(".", 2)[0]
        for side in "kv":
            yield _constant(f"{attention}.{side}_proj.{side}_scale", scale.reshape(()))

    def _unquantized(self, tensor: MappedTensor) -> Iterator[HfTensor]:
        """Copy a tensor from the source, unless it is a norm that differs from it or has to."""
        norm = tensor.target.name.rpartition(".")[0]
        if norm in self.scales:
            yield self._norm(tensor, self.scales[norm])
        elif self._is_same(tensor):
            yield from (self._copy(source, tensor.target.rule) for source in tensor.plain)
        elif self._algorithm is not None and norm.rpartition(".")[2] in SMOOTHED:
            yield self._norm(tensor, None)
        else:
            names = ", ".join(source.name for source in tensor.sources[:3])
            message = f"{tensor.target.name} differs from {names} of {self.source.folder}"
            hint = "give the source that the checkpoint was converted from"
            raise InputError(message, path=self.checkpoint.folder, hint=hint)

    def _copy(self, source: TensorInfo, rule: TensorRule) -> HfTensor:
        dtype = source.dtype if rule.dtype else self.dtype
        return HfTensor(TensorSpec(source.name, dtype, source.shape), partial(cast_chunks, source, dtype))

    def _norm(self, tensor: MappedTensor, scale: Array | None) -> HfTensor:
        (source,) = tensor.sources
        values = folded(self.checkpoint.tensor(tensor.target.name), scale, tensor.target.rule.plus)
        return _constant(source.name, cast(values, self.dtype, name=source.name, path=self.checkpoint.folder))

    def _is_same(self, tensor: MappedTensor) -> bool:
        """Compare a tensor with what conversion makes of its sources."""
        (job,) = plain_jobs([tensor], Layout(self.source.config, self.dtype, ONE_RANK))
        info = self.checkpoint.info(tensor.target.name)
        for _, row, values in job.run():
            (kept,) = info.rows([range(row, row + len(values))], chunk_bytes=values.nbytes)
            if not np.array_equal(_bits(values), _bits(kept)):
                return False
        return True


def _constant(name: str, values: Array) -> HfTensor:
    return HfTensor(TensorSpec(name, values.dtype.name, values.shape), lambda: [values])


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8)
