"""The architectures and the settings of each that change what is computed, as configurations of tiny models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

VOCAB = 260


@dataclass(frozen=True)
class Variant:
    """One tiny model: a class of transformers configuration, what differs from the sizes all share, what it needs."""

    config_class: str
    settings: Mapping[str, Any]
    windows: tuple[int | None, ...] = (None,)
    """What the runtime has to be told: tokens that each layer sees, repeated over the layers."""
    oracle: Mapping[str, Any] = field(default_factory=dict)
    """Settings under which transformers computes what TensorRT-LLM has instead of the model's own."""
    pipelines: tuple[int, ...] = (1, 2)
    max_tp: int = 4
    has_experts: bool = False


LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
TWO_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "decoder_sparse_step": 1,
}
GEMMA = LLAMA | {"head_dim": 32, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
SOFT_CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
GEMMA3 = GEMMA | {
    "num_hidden_layers": 4,
    "query_pre_attn_scalar": 48,
    "sliding_window": 7,
    "sliding_window_pattern": 3,
}
GEMMA3_BASES = {
    "full_attention": {"rope_type": "default", "rope_theta": 50_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
GPT = {
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
NEOX = {
    key: LLAMA[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
} | {
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
FALCON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    """Return rotary settings in the spelling of transformers 5."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **parameters}}


def llama(**settings: Any) -> Variant:
    return Variant("LlamaConfig", LLAMA | settings)


def phi3(**settings: Any) -> Variant:
    return Variant("Phi3Config", LLAMA | {"pad_token_id": 0} | settings, pipelines=(1,))


def longrope(original_tokens: int) -> dict[str, Any]:
    factors = {
        name: [base + i / 4 for i in range(8)] for name, base in (("short_factor", 1.0), ("long_factor", 2.0))
    }
    return {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": original_tokens,
        **rope("longrope", original_max_position_embeddings=original_tokens, **factors),
    }


def falcon(**settings: Any) -> Variant:
    # TensorRT-LLM approximates GELU by tanh.
    # Eager attention of transformers adds ALiBi to the mask and once more to the scores.
    oracle = {"activation": "gelu_pytorch_tanh", "attn_implementation": "sdpa"}
    return Variant("FalconConfig", FALCON | settings, oracle=oracle)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0, "beta_slow": 1.0}

VARIANTS: dict[str, Variant] = {
    "llama": llama(),
    "llama-tied": llama(tie_word_embeddings=True),
    "llama-biases": llama(attention_bias=True, mlp_bias=True),
    "llama-head-size": llama(head_dim=32),
    "llama-odd-vocab": llama(vocab_size=VOCAB + 1),
    "llama-linear": llama(**rope("linear", factor=4.0)),
    "llama-llama3": llama(**rope("llama3", **LLAMA3)),
    "llama-yarn": llama(**rope("yarn", **YARN)),
    "smollm2": replace(
        llama(num_attention_heads=3, num_key_value_heads=1, hidden_size=96, tie_word_embeddings=True),
        max_tp=1,
    ),
    "mistral": Variant("MistralConfig", LLAMA | {"sliding_window": None, "head_dim": 32}),
    "mistral-wide-window": Variant("MistralConfig", LLAMA | {"sliding_window": 128}),
    "mixtral": Variant("MixtralConfig", LLAMA | TWO_EXPERTS, has_experts=True),
    "qwen2": Variant("Qwen2Config", LLAMA),
    "qwen2-tied": Variant("Qwen2Config", LLAMA | {"tie_word_embeddings": True}),
    "qwen2-moe": Variant(
        "Qwen2MoeConfig",
        LLAMA | QWEN_EXPERTS | {"shared_expert_intermediate_size": 80, "norm_topk_prob": False},
        has_experts=True,
    ),
    "qwen2-moe-normed": Variant(
        "Qwen2MoeConfig",
        LLAMA | QWEN_EXPERTS | {"shared_expert_intermediate_size": 80, "norm_topk_prob": True},
        has_experts=True,
    ),
    "qwen3": Variant("Qwen3Config", LLAMA | {"head_dim": 32}),
    "qwen3-moe": Variant(
        "Qwen3MoeConfig", LLAMA | QWEN_EXPERTS | {"head_dim": 32, "norm_topk_prob": True}, has_experts=True
    ),
    "gemma": Variant("GemmaConfig", GEMMA | {"num_key_value_heads": 1}),
    "gemma2": Variant(
        "Gemma2Config",
        GEMMA | SOFT_CAPS | {"query_pre_attn_scalar": 48, "sliding_window": 7, "num_hidden_layers": 4},
        windows=(7, None),
    ),
    "gemma3": Variant("Gemma3TextConfig", GEMMA3 | {"rope_parameters": GEMMA3_BASES}, windows=(7, 7, None)),
    "phi3": phi3(),
    "phi3-partial": phi3(**rope("default", partial_rotary_factor=0.5)),
    "phi3-longrope-short": phi3(**longrope(64)),
    "phi3-longrope-long": phi3(**longrope(16)),
    "gpt2": Variant("GPT2Config", GPT),
    "gpt2-narrow": Variant("GPT2Config", GPT | {"n_inner": 96}),
    "gpt-neox": Variant(
        "GPTNeoXConfig",
        NEOX | rope("default", partial_rotary_factor=0.25),
        oracle={"hidden_act": "gelu_pytorch_tanh"},
    ),
    "falcon-40b": falcon(new_decoder_architecture=True, num_kv_heads=2),
    "falcon-11b": falcon(
        new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, tie_word_embeddings=False
    ),
    "falcon-7b": falcon(multi_query=True, parallel_attn=True),
    "falcon-rw": falcon(multi_query=False, parallel_attn=False, alibi=True, bias=True),
    "granite": Variant(
        "GraniteConfig",
        LLAMA
        | {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
        },
    ),
}

GEMMA3_4B = GEMMA3_BASES | {"full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0}}
SHARED_EXPERT = {"shared_expert_intermediate_size": 80, "norm_topk_prob": False}

REFUSED: dict[str, tuple[Variant, str]] = {
    "llama-dynamic": (llama(**rope("dynamic", factor=2.0)), "dynamic"),
    "llama-yarn-attention-factor": (llama(**rope("yarn", attention_factor=1.5, **YARN)), "attention_factor"),
    "llama-yarn-untruncated": (llama(**rope("yarn", truncate=False, **YARN)), "truncate"),
    # Every second layer is dense; TensorRT-LLM makes all of them sparse.
    "qwen2-moe-step": (
        Variant("Qwen2MoeConfig", LLAMA | QWEN_EXPERTS | SHARED_EXPERT | {"decoder_sparse_step": 2}),
        "decoder_sparse_step",
    ),
    "qwen2-moe-dense-layer": (
        Variant("Qwen2MoeConfig", LLAMA | QWEN_EXPERTS | SHARED_EXPERT | {"mlp_only_layers": [0]}),
        "mlp_only_layers",
    ),
    # TensorRT-LLM scales the table of local layers too, the model only that of global ones.
    "gemma3-4b": (Variant("Gemma3TextConfig", GEMMA3 | {"rope_parameters": GEMMA3_4B}), "rope"),
    "gemma3-cap": (Variant("Gemma3TextConfig", GEMMA3 | SOFT_CAPS), "attn_logit_softcapping"),
    "gpt-neox-sequential": (
        Variant("GPTNeoXConfig", NEOX | {"use_parallel_residual": False}),
        "use_parallel_residual",
    ),
    # Both classes have norms whose epsilon cannot be set.
    "gpt-neox-epsilon": (Variant("GPTNeoXConfig", NEOX | {"layer_norm_eps": 1e-3}), "layer_norm_eps"),
    "falcon-epsilon": (falcon(layer_norm_epsilon=1e-3), "layer_norm_epsilon"),
    "gpt-neox-narrow": (Variant("GPTNeoXConfig", NEOX | {"intermediate_size": 128}), "intermediate_size"),
    "gpt2-layer-scaled": (
        Variant("GPT2Config", GPT | {"scale_attn_by_inverse_layer_idx": True}),
        "scale_attn_by_inverse_layer_idx",
    ),
}
"""Models that TensorRT-LLM cannot run as they are, with the key that a refusal must name."""
