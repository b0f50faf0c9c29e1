"""The model families that llama.cpp and the catalog share: what settings and tensors are called on both sides.

The left sides are the names of ggml-org's ``gguf`` package without the architecture in front; how settings are meant
where a file does not say so is what llama.cpp itself computes with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trtkit.checkpoint.gguf.family import Family
from trtkit.checkpoint.gguf.file import GgufFile
from trtkit.checkpoint.gguf.gpt_families import FALCON, FALCON_40B, GPT2, GPT_NEOX, has_two_norms
from trtkit.checkpoint.gguf.weights import Order

_KEYS = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
}
_EXPERT_KEYS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_HF = "model.layers.{layer}."
_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION = {
    "blk.{layer}.attn_norm": _HF + "input_layernorm",
    "blk.{layer}.attn_q": _HF + "self_attn.q_proj",
    "blk.{layer}.attn_k": _HF + "self_attn.k_proj",
    "blk.{layer}.attn_v": _HF + "self_attn.v_proj",
    "blk.{layer}.attn_output": _HF + "self_attn.o_proj",
    "blk.{layer}.ffn_norm": _HF + "post_attention_layernorm",
}
_MLP = {
    "blk.{layer}.ffn_gate": _HF + "mlp.gate_proj",
    "blk.{layer}.ffn_up": _HF + "mlp.up_proj",
    "blk.{layer}.ffn_down": _HF + "mlp.down_proj",
}
_QK_NORMS = {
    "blk.{layer}.attn_q_norm": _HF + "self_attn.q_norm",
    "blk.{layer}.attn_k_norm": _HF + "self_attn.k_norm",
}
_EXPERTS = {
    "blk.{layer}.ffn_gate_inp": _HF + "mlp.gate",
    "blk.{layer}.ffn_gate_exps": _HF + "mlp.experts.{expert}.gate_proj",
    "blk.{layer}.ffn_up_exps": _HF + "mlp.experts.{expert}.up_proj",
    "blk.{layer}.ffn_down_exps": _HF + "mlp.experts.{expert}.down_proj",
}
_SHARED_EXPERT = {
    "blk.{layer}.ffn_gate_inp_shexp": _HF + "mlp.shared_expert_gate",
    "blk.{layer}.ffn_gate_shexp": _HF + "mlp.shared_expert.gate_proj",
    "blk.{layer}.ffn_up_shexp": _HF + "mlp.shared_expert.up_proj",
    "blk.{layer}.ffn_down_shexp": _HF + "mlp.shared_expert.down_proj",
}

_LLAMA = Family(
    class_name="LlamaForCausalLM",
    model_type="llama",
    keys=_KEYS,
    tensors={**_OUTER, **_ATTENTION, **_MLP},
    constants={"hidden_act": "silu"},
    fixed={"expert_count": (0,), "expert_used_count": (0,)},
    flags={"attention_bias": "attn_q.bias", "mlp_bias": "ffn_gate.bias"},
    orders={"attn_q": Order.ROTATED, "attn_k": Order.ROTATED},
)
_MOE = _HF + "block_sparse_moe."
_MIXTRAL = replace(
    _LLAMA,
    class_name="MixtralForCausalLM",
    model_type="mixtral",
    keys={**_KEYS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    tensors={
        **_OUTER,
        **_ATTENTION,
        "blk.{layer}.ffn_gate_inp": _MOE + "gate",
        "blk.{layer}.ffn_gate_exps": _MOE + "experts.{expert}.w1",
        "blk.{layer}.ffn_down_exps": _MOE + "experts.{expert}.w2",
        "blk.{layer}.ffn_up_exps": _MOE + "experts.{expert}.w3",
    },
    fixed={},
    flags={"attention_bias": "attn_q.bias"},
)
_GRANITE = replace(
    _LLAMA,
    class_name="GraniteForCausalLM",
    model_type="granite",
    keys={
        **_KEYS,
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "logit_scale": "logits_scaling",
        "residual_scale": "residual_multiplier",
    },
)
_QWEN2 = Family(
    class_name="Qwen2ForCausalLM",
    model_type="qwen2",
    keys=_KEYS,
    tensors={**_OUTER, **_ATTENTION, **_MLP},
    constants={"hidden_act": "silu", "use_sliding_window": False},
)
_QWEN2_MOE = replace(
    _QWEN2,
    class_name="Qwen2MoeForCausalLM",
    model_type="qwen2_moe",
    keys={
        **_KEYS,
        **_EXPERT_KEYS,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    tensors={**_OUTER, **_ATTENTION, **_EXPERTS, **_SHARED_EXPERT},
    constants={
        **_QWEN2.constants,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    orders={"ffn_gate_inp_shexp": Order.ROW},
)
_QWEN3 = replace(
    _QWEN2,
    class_name="Qwen3ForCausalLM",
    model_type="qwen3",
    tensors={**_OUTER, **_ATTENTION, **_QK_NORMS, **_MLP},
    constants={**_QWEN2.constants, "attention_bias": False},
)
_QWEN3_MOE = replace(
    _QWEN3,
    class_name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    keys={**_KEYS, **_EXPERT_KEYS},
    tensors={**_OUTER, **_ATTENTION, **_QK_NORMS, **_EXPERTS},
    constants={
        **_QWEN3.constants,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
)

_GEMMA = Family(
    class_name="GemmaForCausalLM",
    model_type="gemma",
    keys=_KEYS,
    tensors={**_OUTER, **_ATTENTION, **_MLP},
    constants={"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
    norm_plus=-1.0,
)
_SANDWICH_NORMS = {
    "blk.{layer}.post_attention_norm": _HF + "post_attention_layernorm",
    "blk.{layer}.ffn_norm": _HF + "pre_feedforward_layernorm",
    "blk.{layer}.post_ffw_norm": _HF + "post_feedforward_layernorm",
}


def _query_scalar(file: GgufFile, layers_of_27b: int) -> int:
    """Return what scores are scaled by: the width of a head, but for the largest model of each generation.

    Gemma 2 27B has heads of 128 and 4608 / 32 = 144, Gemma 3 27B heads of 128 and 5376 / 32 = 168.
    """
    if file.count("block_count") == layers_of_27b:
        return file.count("embedding_length") // file.count("attention.head_count")
    return file.count("attention.key_length")


def _layer_types(file: GgufFile, pattern: int) -> list[str]:
    """Return the kind of every layer: each n-th one sees everything."""
    has_window = bool(file.get("attention.sliding_window"))
    return [
        "sliding_attention" if has_window and (layer + 1) % pattern else "full_attention"
        for layer in range(file.count("block_count"))
    ]


def _gemma2(file: GgufFile) -> Mapping[str, Any]:
    return {"query_pre_attn_scalar": _query_scalar(file, 46), "layer_types": _layer_types(file, 2)}


def _gemma3(file: GgufFile) -> Mapping[str, Any]:
    key = "attention.sliding_window_pattern"
    pattern = file.count(key) if file.get(key) is not None else 6
    return {
        "query_pre_attn_scalar": _query_scalar(file, 62),
        "layer_types": _layer_types(file, pattern),
        "sliding_window_pattern": pattern,
        "rope_local_base_freq": file.get("rope.freq_base_swa") or 10_000.0,
    }


_GEMMA2 = replace(
    _GEMMA,
    class_name="Gemma2ForCausalLM",
    model_type="gemma2",
    keys={
        **_KEYS,
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    tensors={**_OUTER, **_ATTENTION, **_SANDWICH_NORMS, **_MLP},
    derive=_gemma2,
)
_GEMMA3 = replace(
    _GEMMA,
    class_name="Gemma3ForCausalLM",
    model_type="gemma3_text",
    keys={
        **_KEYS,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "final_logit_softcapping": "final_logit_softcapping",
        "rope.freq_base_swa": "rope_local_base_freq",
    },
    tensors={**_OUTER, **_ATTENTION, **_SANDWICH_NORMS, **_QK_NORMS, **_MLP},
    derive=_gemma3,
)


def _phi3(file: GgufFile) -> Mapping[str, Any]:
    # 0 is how converters write that there is none.
    return {
        "sliding_window": file.get("attention.sliding_window") or None,
        "original_max_position_embeddings": file.get("rope.scaling.original_context_length"),
    }


_PHI3 = Family(
    class_name="Phi3ForCausalLM",
    model_type="phi3",
    keys={**_KEYS, "attention.sliding_window": "sliding_window"},
    tensors={
        **_OUTER,
        "blk.{layer}.attn_norm": _HF + "input_layernorm",
        "blk.{layer}.attn_qkv": _HF + "self_attn.qkv_proj",
        "blk.{layer}.attn_output": _HF + "self_attn.o_proj",
        "blk.{layer}.ffn_norm": _HF + "post_attention_layernorm",
        "blk.{layer}.ffn_up": _HF + "mlp.gate_up_proj",
        "blk.{layer}.ffn_down": _HF + "mlp.down_proj",
    },
    constants={"hidden_act": "silu"},
    rotary_pct="partial_rotary_factor",
    derive=_phi3,
)

FAMILIES: dict[str, Family] = {
    "falcon": FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gpt2": GPT2,
    "gptneox": GPT_NEOX,
    "granite": _GRANITE,
    "llama": _LLAMA,
    "phi3": _PHI3,
    "qwen2": _QWEN2,
    "qwen2moe": _QWEN2_MOE,
    "qwen3": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
}
"""By ``general.architecture``."""


def family_of(file: GgufFile) -> Family | None:
    """Return the family of a model, or None when the catalog has none for it."""
    family = FAMILIES.get(file.architecture)
    if family is _LLAMA and file.get("expert_count"):
        return _MIXTRAL
    return FALCON_40B if family is FALCON and has_two_norms(file) else family
