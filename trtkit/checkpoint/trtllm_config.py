"""TensorRT-LLM's ``config.json``, both ways. Only keys that every engine-era version takes are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trtkit
from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.errors import InputError
from trtkit.plan.hf_fields import is_positive
from trtkit.plan.model import ModelConfig
from trtkit.plan.types import QuantPlan

DTYPES = ("bfloat16", "float16", "float32")
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
_COUNTS = frozenset({
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_size",
    "intermediate_size", "vocab_size", "max_position_embeddings",
})  # fmt: skip
_NUMBERS = frozenset({"norm_epsilon", "rotary_base"})
_FLAGS = frozenset({"attn_bias", "mlp_bias"})


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


def read_config(content: Mapping[str, Any], *, path: Path) -> ModelConfig:
    """Return the model that the ``config.json`` at ``path`` describes; it holds no special tokens.

    Raises:
        InputError: A key is missing or its value cannot be; the message names it.
    """
    # A converted checkpoint always has a head of its own; a tied one is a copy.
    keys = [key for key in _FIELDS if key != "tie_word_embeddings"]
    for key in keys:
        if key not in content or not _can_be(key, content[key]):
            raise InputError(f"{key} is missing or malformed", path=path)
    return ModelConfig(
        **{_FIELDS[key]: content[key] for key in keys},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_ids=(),
        pad_token_id=None,
    )


def _can_be(key: str, value: Any) -> bool:
    if key in _COUNTS:
        return type(value) is int and value > 0
    if key in _NUMBERS:
        return is_positive(value)
    if key in _FLAGS:
        return isinstance(value, bool)
    if key == "rotary_scaling":
        return value is None or isinstance(value, Mapping)
    return isinstance(value, str) and (key != "dtype" or value in DTYPES)
