"""The families with LayerNorm: GPT-2, GPT-NeoX and Falcon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trtkit.checkpoint.gguf.family import Family
from trtkit.checkpoint.gguf.file import GgufFile
from trtkit.checkpoint.gguf.weights import Order

_GPT2_HF = "transformer.h.{layer}."
GPT2 = Family(
    class_name="GPT2LMHeadModel",
    model_type="gpt2",
    keys={
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "block_count": "n_layer",
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
    },
    tensors={
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        "blk.{layer}.attn_norm": _GPT2_HF + "ln_1",
        "blk.{layer}.attn_qkv": _GPT2_HF + "attn.c_attn",
        "blk.{layer}.attn_output": _GPT2_HF + "attn.c_proj",
        "blk.{layer}.ffn_norm": _GPT2_HF + "ln_2",
        "blk.{layer}.ffn_up": _GPT2_HF + "mlp.c_fc",
        "blk.{layer}.ffn_down": _GPT2_HF + "mlp.c_proj",
    },
    constants={"activation_function": "gelu_new"},
    orders=dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), Order.TRANSPOSED),
    rotates=False,
)
_NEOX_HF = "gpt_neox.layers.{layer}."
GPT_NEOX = Family(
    class_name="GPTNeoXForCausalLM",
    model_type="gpt_neox",
    keys={
        "attention.head_count": "num_attention_heads",
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "use_parallel_residual": "use_parallel_residual",
    },
    tensors={
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
        "blk.{layer}.attn_norm": _NEOX_HF + "input_layernorm",
        "blk.{layer}.attn_qkv": _NEOX_HF + "attention.query_key_value",
        "blk.{layer}.attn_output": _NEOX_HF + "attention.dense",
        "blk.{layer}.ffn_norm": _NEOX_HF + "post_attention_layernorm",
        "blk.{layer}.ffn_up": _NEOX_HF + "mlp.dense_h_to_4h",
        "blk.{layer}.ffn_down": _NEOX_HF + "mlp.dense_4h_to_h",
    },
    constants={"hidden_act": "gelu"},
    orders={"attn_qkv": Order.GROUPED},
    rotary_pct="rotary_pct",
)


def _falcon(file: GgufFile) -> Mapping[str, Any]:
    """Return what tells the generations apart: 7B shares one KV head, 40B has two norms, 11B neither."""
    shares = file.count("attention.head_count_kv") == 1
    return {
        "multi_query": shares,
        "new_decoder_architecture": not shares,
        "num_ln_in_parallel_attn": 2 if has_two_norms(file) else 1,
    }


def has_two_norms(file: GgufFile) -> bool:
    """Return whether attention and MLP have norms of their own, as in Falcon 40B."""
    return "blk.0.attn_norm_2.weight" in file.tensors


_FALCON_HF = "transformer.h.{layer}."
FALCON = Family(
    class_name="FalconForCausalLM",
    model_type="falcon",
    keys={
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_kv_heads",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "ffn_hidden_size",
    },
    tensors={
        "token_embd": "transformer.word_embeddings",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        "blk.{layer}.attn_norm": _FALCON_HF + "input_layernorm",
        "blk.{layer}.attn_qkv": _FALCON_HF + "self_attention.query_key_value",
        "blk.{layer}.attn_output": _FALCON_HF + "self_attention.dense",
        "blk.{layer}.ffn_up": _FALCON_HF + "mlp.dense_h_to_4h",
        "blk.{layer}.ffn_down": _FALCON_HF + "mlp.dense_4h_to_h",
    },
    constants={"activation": "gelu", "alibi": False, "bias": False, "parallel_attn": True},
    fixed={"tensor_data_layout": ("jploski",)},
    orders={"attn_qkv": Order.GROUPED},
    derive=_falcon,
)
FALCON_40B = replace(
    FALCON,
    tensors={
        **FALCON.tensors,
        "blk.{layer}.attn_norm": _FALCON_HF + "ln_mlp",
        "blk.{layer}.attn_norm_2": _FALCON_HF + "ln_attn",
    },
)
