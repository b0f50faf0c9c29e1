"""The model as every room sees it: one normalised description, whatever its source called the fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Moe:
    """A mixture of experts in every layer."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """Width of one expert."""
    shared_intermediate_size: int
    """Width of the expert that every token visits; 0 without one."""
    renormalize: bool
    """Whether the weights of the chosen experts are scaled to sum to 1."""


@dataclass(frozen=True)
class Kept:
    """How a quantized source keeps its linear layers, which its checkpoint takes over."""

    method: str
    """The tool that quantized it, for messages."""
    weights: tuple[str, ...]
    """The contract's words for the format; the first one is its own."""
    kv_cache: str
    group_size: int
    """Input channels that share a scale; 0 where that is not how it is."""
    has_zero_point: bool
    plain: frozenset[str]
    """Linear layers that are not quantized, by the engine's names."""


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's geometry and numerics. Counts are global (all ranks together)."""

    architecture: str
    """Hugging Face class name, which is also the key of TensorRT-LLM's model map."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    hidden_act: str
    norm_epsilon: float
    max_position_embeddings: int
    rotary_base: float
    rotary_scaling: dict[str, Any] | None
    attn_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool
    dtype: str
    """Data type of the source tensors, as the source declares it."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    moe: Moe | None = None
    rotary_pct: float = 1.0
    """Part of each head that is rotated."""
    sliding_window: int | None = None
    """Tokens that attention reaches back, itself included; None when it reaches back to the start."""
    sliding_window_pattern: int | None = None
    """Every n-th layer reaches back to the start all the same; None when no layer does."""
    numerics: Mapping[str, Any] = field(default_factory=dict)
    """What only this family has (soft caps, multipliers, layout flags), by TensorRT-LLM's key in ``config.json``."""
    kept: Kept | None = None
    """Of a source that is quantized already."""

    @property
    def rotary_dim(self) -> int:
        """Dimensions of each head that are rotated, cut as transformers and TensorRT-LLM cut them."""
        return int(self.head_size * self.rotary_pct)
