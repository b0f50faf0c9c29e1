"""TensorRT-LLM's ``config.json``, both ways. Only keys that every engine-era version takes are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trtkit
from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.plan.model import ModelConfig
from trtkit.plan.types import QuantPlan

_FIELDS = {
    "architecture": "architecture",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_size": "head_size",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "hidden_act": "hidden_act",
    "norm_epsilon": "norm_epsilon",
    "max_position_embeddings": "max_position_embeddings",
    "rotary_base": "rotary_base",
    "rotary_scaling": "rotary_scaling",
    "attn_bias": "attn_bias",
    "mlp_bias": "mlp_bias",
    # Not TensorRT-LLM's: it compares the tensors. Unknown keys at the top level are taken with a warning.
    "tie_word_embeddings": "tie_word_embeddings",
    "dtype": "dtype",
}
"""Key of the file to field of :class:`ModelConfig`."""
_COUNTS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_size",
    "intermediate_size",
    "vocab_size",
)


def write_config(config: ModelConfig, *, dtype: str, quantization: QuantPlan) -> dict[str, Any]:
    """Return the content of ``config.json`` for one rank.

    ``mapping`` and ``quantization`` become keyword arguments of the loader: a key that its version does not know is
    a TypeError there, so both hold the least.
    """
    content = {key: getattr(config, field) for key, field in _FIELDS.items()}
    return {
        "producer": {"name": "trtkit", "version": trtkit.__version__},
        **content,
        "dtype": dtype,
        "logits_dtype": "float32",
        **ARCHITECTURES[config.architecture].engine_config,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {
            "quant_algo": quantization.quant_algo,
            "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
        },
    }


def read_config(content: Mapping[str, Any]) -> ModelConfig:
    """Return the model that a ``config.json`` describes; it holds no special tokens.

    Raises:
        KeyError: A key is missing.
        ValueError: A count is not a positive whole number; both name the key.
    """
    for key in _COUNTS:
        if type(content[key]) is not int or content[key] < 1:
            raise ValueError(key)
    values = {field: content[key] for key, field in _FIELDS.items() if key != "tie_word_embeddings"}
    # A converted checkpoint always has a head of its own; a tied one is a copy.
    return ModelConfig(
        **values, tie_word_embeddings=False, bos_token_id=None, eos_token_ids=(), pad_token_id=None
    )
