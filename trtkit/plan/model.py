"""The model as every room sees it: one normalised description, whatever its source called the fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
