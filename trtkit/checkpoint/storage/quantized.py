"""What all quantized storages have in common: which layers, which parts, which scales of the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtkit.checkpoint.storage.packing import Packing
from trtkit.checkpoint.storage.storage import PartSpec

SCALE_DTYPES = ("float32", "bfloat16", "float16")
AUTO = "auto"
"""A KV cache in the model's data type, in the contract's words."""
ZERO_PARTS = ("bias", "weight_zero_point", "input_zero_point")
"""Parts that tools write although nothing uses them; only zeros in them can be honoured."""

Specs = Callable[[str, tuple[int, int]], dict[str, PartSpec]]
"""From a layer's name and ``(out, in)`` to its parts by key."""


@dataclass(frozen=True)
class Quantized:
    """Linear layers that a tool has quantized, all of them in one way.

    Keys of parts are ``weight``, ``weight_scale``, ``input_scale``, ``pre_quant_scale``, ``k_scale`` and ``v_scale``
    where they mean that; packed weights have keys of their own, which ``packing`` reads.
    """

    method: str
    """The tool, for messages."""
    weights: tuple[str, ...]
    """The contract's words for it; the first one is its own."""
    quant_algo: str
    specs: Specs
    skips: Callable[[str], bool]
    """Whether a layer was left plain, by its name."""
    kv_cache: str = AUTO
    group_size: int = 0
    """Input columns that share a scale; 0 where that is not how it is."""
    packing: Packing | None = None
    has_zero_point: bool = False
    needs_target: bool = False
    """Whether it is written in the layout of a given GPU only."""
    pre_quant_scale: bool | None = None
    """Whether some layers scale their input, where the source says that."""
    clamp: float | None = None
    """Bound on activations before they are quantized."""
    unknown: tuple[str, ...] = ()
    """Keys of the source's description that nobody knows."""

    def parts(self, name: str, shape: tuple[int, ...]) -> Mapping[str, PartSpec] | None:
        """Return what the source has for the layer whose plain weight would be ``name``; None where it is plain."""
        module = name.removesuffix(".weight")
        if len(shape) != 2 or self.skips(module):
            return None
        kv_parts = _kv_parts(module) if self.kv_cache != AUTO else {}
        return self.specs(module, (shape[0], shape[1])) | kv_parts

    def superfluous(self, name: str) -> bool:  # noqa: ARG002
        """Expect nothing else."""
        return False


def scale(name: str, shape: tuple[int, ...] = (), *, optional: bool = False) -> PartSpec:
    """Return the spec of a scale."""
    return PartSpec(name, shape, SCALE_DTYPES, optional, squeezed=True)


def vanishing(name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> PartSpec:
    """Return the spec of a tensor that may be there as long as it holds zeros."""
    return PartSpec(name, shape, dtypes, optional=True, squeezed=True)


def _kv_parts(module: str) -> dict[str, PartSpec]:
    """Return the scales of the KV cache, under the names that ModelOpt, llmcompressor and AutoFP8 give them."""
    attention, _, layer = module.rpartition(".")
    fused = "qkv" in layer or layer in {"query_key_value", "c_attn"}
    letters = "kv" if fused else layer[0] if layer in {"k_proj", "v_proj"} else ""
    found = {}
    for letter in letters:
        others = (f"{attention}.{letter}_scale", f"{attention}.attn.{letter}_scale", f"{attention}.kv_scale")
        outputs = () if fused else (f"{module}.output_scale",)
        spec = PartSpec(
            f"{module}.{letter}_scale", (), SCALE_DTYPES, aliases=(*others, *outputs), squeezed=True
        )
        found[f"{letter}_scale"] = spec
    return found
