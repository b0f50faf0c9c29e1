"""The tensors of each quantization algorithm in a TensorRT-LLM checkpoint. Data only.

Every linear layer of the algorithm consists of ``parts``; shapes follow from the layer's ``(out, in)``, and so does
the way tensor parallelism divides them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Axis(enum.Enum):
    """One dimension of a part, in terms of the layer's weight; it is divided among the ranks as that is."""

    ONE = "1, whole on every rank"
    EXPERTS = "number of experts; only the layers that have them have this axis"
    OUT = "out"
    OUT_PAIRS = "out / 2"
    OUT_QUARTERS = "out / 4"
    IN = "in"
    IN_GROUPS = "in / group_size"


MODEL_DTYPE = "model"
"""Stands for the data type of the checkpoint."""


@dataclass(frozen=True)
class Part:
    """One tensor of a quantized linear layer; ``suffix`` takes the place of ``weight`` in the name."""

    suffix: str
    dtypes: tuple[str, ...]
    """The data types that loaders take; the first one is written."""
    axes: tuple[Axis, ...]
    layers: tuple[str, ...] = ()
    """Last names of the layers that have it (``dense``, ``proj``, ...); empty for all."""
    when: str = ""
    """Flag of the ``quantization`` block that must be true for it, for instance ``has_zero_point``."""

    def applies(self, name: str, quantization: Mapping[str, object]) -> bool:
        """Return whether the linear layer whose weight is ``name`` has it."""
        layer = name.split(".")[-2]
        return (not self.layers or layer in self.layers) and (
            not self.when or quantization.get(self.when) is True
        )


@dataclass(frozen=True)
class LayerPart:
    """A tensor that a decoder layer has once, whole on every rank."""

    name: str
    """Below ``transformer.layers.N.``."""
    dtypes: tuple[str, ...]
    shape: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Scheme:
    """What an algorithm stores."""

    parts: tuple[Part, ...]
    layer_parts: tuple[LayerPart, ...] = ()
    flags: Mapping[str, object] = field(default_factory=dict)
    """Keys of the ``quantization`` block beside ``quant_algo`` and ``kv_cache_quant_algo``, with defaults."""


_PLAIN = Part("weight", (MODEL_DTYPE,), (Axis.EXPERTS, Axis.OUT, Axis.IN))

SCHEMES: dict[str | None, Scheme] = {
    None: Scheme((_PLAIN,)),
    # Plain weights: the loader quantizes them in the layout of the GPU that it finds.
    "W8A16": Scheme((_PLAIN,)),
}
"""By ``quantization.quant_algo``."""

KV_CACHE_SCALE = LayerPart("attention.kv_cache_scaling_factor", ("float32",))
"""Every layer has it when ``kv_cache_quant_algo`` is set; times the stored value it is the real one."""
