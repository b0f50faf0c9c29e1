"""Qwen 1.5 to 3 as they were published, and tiny models of each family."""

from __future__ import annotations

from tests.checkpoint.family import COMMON, TINY, Shapes, decoder_shapes, gated_shapes

PUBLISHED = COMMON | {
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2_7B = PUBLISHED | {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "use_mrope": False,
    "vocab_size": 152064,
}
QWEN2_HALF_B = QWEN2_7B | {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
QWEN15_MOE = PUBLISHED | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 8192,
    "max_window_layers": 21,
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 5632,
    "sliding_window": 32768,
}
QWEN3_8B = PUBLISHED | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "sliding_window": None,
}
QWEN3_30B_A3B = QWEN3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
QWEN2 = TINY | {"architectures": ["Qwen2ForCausalLM"]}
QWEN2_MOE = TINY | EXPERTS | {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 80}
QWEN3 = TINY | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
QWEN3_MOE = TINY | EXPERTS | {"architectures": ["Qwen3MoeForCausalLM"], "head_dim": 32}
FAMILIES = {"qwen2": QWEN2, "qwen2_moe": QWEN2_MOE, "qwen3": QWEN3, "qwen3_moe": QWEN3_MOE}


def shapes(config: dict) -> Shapes:
    hidden, head = config["hidden_size"], config.get("head_dim") or 16
    mlp = {}
    if "num_experts" in config:
        mlp["mlp.gate.weight"] = (config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            mlp |= gated_shapes(f"mlp.experts.{expert}.", hidden, config["moe_intermediate_size"])
    else:
        mlp |= gated_shapes("mlp.", hidden, config["intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        mlp |= gated_shapes("mlp.shared_expert.", hidden, config["shared_expert_intermediate_size"])
        mlp["mlp.shared_expert_gate.weight"] = (1, hidden)
    if "Qwen3" in config["architectures"][0]:
        return decoder_shapes(config, mlp | {f"self_attn.{side}_norm.weight": (head,) for side in "qk"})
    if config.get("qkv_bias", True):
        rows = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
        rows["v"] = rows["k"]
        mlp |= {f"self_attn.{side}_proj.bias": (count * head,) for side, count in rows.items()}
    return decoder_shapes(config, mlp)
