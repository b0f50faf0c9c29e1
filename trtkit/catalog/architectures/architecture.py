"""What describes an architecture: configuration keys, tensor rules, what the engine can honour."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Dim(enum.Enum):
    """Symbolic sizes of tensors; all are global (before any split)."""

    HIDDEN = "hidden"
    Q = "num_heads * head_size"
    KV = "num_kv_heads * head_size"
    INTERMEDIATE = "intermediate"
    VOCAB = "vocab"


class Split(enum.Enum):
    """How tensor parallelism divides a tensor."""

    NONE = "replicated on every rank"
    ROWS = "output rows are divided (column parallel)"
    COLUMNS = "input columns are divided (row parallel)"
    QKV = "rows are divided by heads inside each of Q, K and V"
    VOCAB = "rows are padded to a multiple of the ranks, then divided"


class When(enum.Enum):
    """Which models have a tensor."""

    ALWAYS = "always"
    ATTN_BIAS = "attn_bias"
    MLP_BIAS = "mlp_bias"
    TIED = "tied"
    UNTIED = "untied"


@dataclass(frozen=True)
class Source:
    """One tensor of the Hugging Face checkpoint; ``{layer}`` in the name counts from 0."""

    name: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class TensorRule:
    """One tensor of the TensorRT-LLM checkpoint: its sources, stacked by rows in the order given."""

    target: str
    sources: tuple[Source, ...]
    split: Split = Split.NONE
    when: When = When.ALWAYS

    @property
    def per_layer(self) -> bool:
        """Whether the rule stands for one tensor in every layer."""
        return "{layer}" in self.target

    @property
    def is_linear(self) -> bool:
        """Whether the tensor is the weight of a linear layer that quantization replaces."""
        return self.split in (Split.ROWS, Split.COLUMNS, Split.QKV) and self.target.endswith(".weight")


@dataclass(frozen=True)
class RopeType:
    """Parameters of one kind of rotary scaling."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Parameters that TensorRT-LLM does not read: only these values mean the same without them."""


@dataclass(frozen=True)
class Architecture:
    """Everything that differs between model families, as data."""

    name: str
    """Hugging Face class name, which is also the key of TensorRT-LLM's model map."""
    keys: Mapping[str, tuple[str, ...]]
    """Field of ``ModelConfig`` to its spellings in ``config.json``."""
    defaults: Mapping[str, Any]
    """What the absence of a field means; a field that is not here is required."""
    activations: Mapping[str, str]
    """Spellings of the activations that the engine has, to TensorRT-LLM's name."""
    rope_types: Mapping[str, RopeType]
    neutral: Mapping[str, tuple[Any, ...]]
    """Keys that change the result and that the engine cannot honour, with the values that change nothing."""
    restated: Mapping[str, str]
    """Keys that change the result too, unless their value is that of a field of ``ModelConfig``."""
    ignorable: frozenset[str]
    """Keys of ``config.json`` that do not change the result of inference."""
    engine_config: Mapping[str, Any]
    """Constants of the TensorRT-LLM ``config.json``."""
    tensors: tuple[TensorRule, ...]
    ignored_tensors: tuple[str, ...] = ()
    """Patterns of source tensors that hold nothing of their own."""
    sliding_window_default: int | None = None
    """Attention window in tokens when ``config.json`` does not name one."""
