"""A TensorRT-LLM checkpoint run as its model classes run it, in float32: the judge of what was written.

Only ``config.json`` and tensors are read. A key without a default in TensorRT-LLM raises KeyError, a tensor of
another shape or one that no layer reads fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.architectures.attention import Attention, attend, soft_cap
from tests.architectures.feed_forward import experts, fused_mlp, gated_mlp, plain_mlp
from tests.architectures.weights import Config, Weights

LLAMAS = ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "GraniteForCausalLM")
QWENS = ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
GEMMAS = ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM")
# These build their attention without naming the size of a head or a rotary scaling.
PLAIN_ATTENTION = ("Phi3ForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "FalconForCausalLM")
LAYER_NORM_EPSILON = 1e-5

Block = Callable[[Config, Weights, Tensor, int, int | None], Tensor]


@torch.no_grad()
def forward(
    config: Config, tensors: dict[str, Tensor], ids: Tensor, windows: Sequence[int | None] = (None,)
) -> Tensor:
    """Return logits (batch, length, vocabulary) of token ids (batch, length).

    ``windows`` is the runtime's ``max_attention_window``: tokens that each layer sees, itself included, repeated
    over the layers. No checkpoint holds it.
    """
    weights, block = Weights(tensors), BLOCKS[config["architecture"]]
    if config["architecture"] in PLAIN_ATTENTION:
        assert config["head_size"] * config["num_attention_heads"] == config["hidden_size"]
        assert config.get("rotary_scaling") is None
    body = weights.under("transformer")
    x = embed(config, body, ids)
    for layer in range(config["num_hidden_layers"]):
        x = block(config, body.under(f"layers.{layer}"), x, layer, windows[layer % len(windows)])
    logits = head(config, weights, final_norm(config, body.under("ln_f"), x))
    assert weights.read == tensors.keys(), f"nothing reads {tensors.keys() - weights.read}"
    return logits


def embed(config: Config, body: Weights, ids: Tensor) -> Tensor:
    hidden = config["hidden_size"]
    x = body.take("vocab_embedding.weight", config["vocab_size"], hidden)[ids]
    if config["architecture"] in GEMMAS:
        return x * math.sqrt(hidden)
    if config["architecture"] == "GPT2LMHeadModel":
        assert config["position_embedding_type"] == "learned_absolute"
        positions = body.take("position_embedding.weight", config["max_position_embeddings"], hidden)
        return x + positions[: ids.shape[1]]
    return x * multiplier(config, "embedding_multiplier")


def final_norm(config: Config, norm: Weights, x: Tensor) -> Tensor:
    if config["architecture"] in ("GPTNeoXForCausalLM", "FalconForCausalLM"):
        return norm.layer_norm(x, LAYER_NORM_EPSILON)
    kind = norm.layer_norm if config["architecture"] == "GPT2LMHeadModel" else norm.rms_norm
    return kind(x, config["norm_epsilon"])


def head(config: Config, weights: Weights, x: Tensor) -> Tensor:
    """Project to the vocabulary; without a head of its own, one stage shares the embedding."""
    own = "lm_head.weight" in weights.tensors
    assert own or config["mapping"]["pp_size"] == 1
    name = "lm_head.weight" if own else "transformer.vocab_embedding.weight"
    logits = x @ weights.take(name, config["vocab_size"], config["hidden_size"]).T
    logits = logits * config.get("output_multiplier_scale", 1.0)
    if config["architecture"] in ("Gemma2ForCausalLM", "Gemma3ForCausalLM"):
        return soft_cap(logits, config["final_logit_softcapping"])
    return logits


def multiplier(config: Config, key: str) -> float:
    """Return a factor that only the Llama class knows."""
    return config.get(key, 1.0) if config["architecture"] in LLAMAS else 1.0


def llama(config: Config, layer: Weights, x: Tensor, _index: int, window: int | None) -> Tensor:
    """Run a layer of LLaMAForCausalLM, which is Mistral's, Mixtral's and Granite's class too."""
    spec = Attention(
        bias=config["attn_bias"],
        dense_bias=config["attn_bias"],
        rotary_base=config["rotary_base"],
        q_scaling=1 / multiplier(config, "attention_multiplier"),
    )
    scale = multiplier(config, "residual_multiplier")
    normed = layer.under("input_layernorm").rms_norm(x, config["norm_epsilon"])
    x = x + scale * attend(config, spec, layer.under("attention"), normed, window)
    normed = layer.under("post_layernorm").rms_norm(x, config["norm_epsilon"])
    mlp = layer.under("mlp")
    if (config.get("moe") or {}).get("num_experts"):
        return x + scale * experts(config, mlp, normed, config["intermediate_size"])
    return x + scale * gated_mlp(config, mlp, normed, bias=config["mlp_bias"])


def qwen(config: Config, layer: Weights, x: Tensor, _index: int, window: int | None) -> Tensor:
    assert config["seq_length"] > 0
    spec = Attention(
        bias=config["attn_bias"],
        dense_bias=False,
        rotary_base=config["rotary_base"],
        qk_norm=config["qwen_type"] in ("qwen3", "qwen3_moe"),
    )
    normed = layer.under("input_layernorm").rms_norm(x, config["norm_epsilon"])
    x = x + attend(config, spec, layer.under("attention"), normed, window)
    normed = layer.under("post_layernorm").rms_norm(x, config["norm_epsilon"])
    return x + qwen_mlp(config, layer.under("mlp"), normed)


def qwen_mlp(config: Config, mlp: Weights, x: Tensor) -> Tensor:
    """Run the dense MLP or the experts; Qwen2-MoE adds a shared expert behind a sigmoid gate."""
    if config["qwen_type"] not in ("qwen2_moe", "qwen3_moe"):
        return gated_mlp(config, mlp, x, bias=config["mlp_bias"])
    routed = experts(config, mlp, x, config["moe_intermediate_size"])
    if config["qwen_type"] == "qwen3_moe":
        return routed
    shared = fused_mlp(mlp.under("shared_expert"), x, config["moe_shared_expert_intermediate_size"])
    return routed + mlp.under("shared_expert_gate").linear(x, 1, bias=False).sigmoid() * shared


def gemma(config: Config, layer: Weights, x: Tensor, index: int, window: int | None) -> Tensor:
    """Run a layer of Gemma 1, or of 2 and 3, which norm both sides of attention and MLP."""
    epsilon = config["norm_epsilon"]
    normed = layer.under("input_layernorm").rms_norm(x, epsilon)
    attention = attend(config, gemma_attention(config, index), layer.under("attention"), normed, window)
    if config["architecture"] == "GemmaForCausalLM":
        x = x + attention
        normed = layer.under("post_layernorm").rms_norm(x, epsilon)
        return x + gated_mlp(config, layer.under("mlp"), normed, bias=config["mlp_bias"])
    x = x + layer.under("post_layernorm").rms_norm(attention, epsilon)
    normed = layer.under("pre_feedforward_layernorm").rms_norm(x, epsilon)
    output = gated_mlp(config, layer.under("mlp"), normed, bias=config["mlp_bias"])
    return x + layer.under("post_feedforward_layernorm").rms_norm(output, epsilon)


def gemma_attention(config: Config, index: int) -> Attention:
    """Say what Gemma adds: scale, cap (2), norms of queries and keys and a second base for local layers (3).

    ``rotary_scaling`` is that of local layers too: both tables are made with it.
    """
    architecture, base, q_scaling, cap = config["architecture"], config["rotary_base"], 1.0, None
    if architecture != "GemmaForCausalLM":
        q_scaling = math.sqrt(config["query_pre_attn_scalar"] / config["head_size"])
    if architecture == "Gemma2ForCausalLM":
        cap = config["attn_logit_softcapping"]
    if architecture == "Gemma3ForCausalLM":
        assert config["sliding_window_pattern"] == config["_sliding_window_pattern"], "old and new key"
        assert config["sliding_window"] > 0
        if (index + 1) % config["_sliding_window_pattern"]:
            base = config["rope_local_base_freq"]
    bias, qk_norm = config["attn_bias"], architecture == "Gemma3ForCausalLM"
    return Attention(bias, bias, base, q_scaling=q_scaling, cap=cap, qk_norm=qk_norm)


def phi3(config: Config, layer: Weights, x: Tensor, _index: int, window: int | None) -> Tensor:
    assert config["mapping"]["pp_size"] == 1
    assert config["hidden_act"] == "swiglu"
    spec = Attention(
        bias=False,
        dense_bias=False,
        rotary_base=config["rotary_base"],
        rotary_fraction=config["rotary_pct"],
    )
    normed = layer.under("input_layernorm").rms_norm(x, config["norm_epsilon"])
    x = x + attend(config, spec, layer.under("attention"), normed, window)
    normed = layer.under("post_layernorm").rms_norm(x, config["norm_epsilon"])
    return x + fused_mlp(layer.under("mlp"), normed, config["intermediate_size"])


def gpt2(config: Config, layer: Weights, x: Tensor, _index: int, window: int | None) -> Tensor:
    bias = config.get("bias", True)
    spec = Attention(bias, bias, rotary_base=None, q_scaling=config.get("q_scaling", 1.0))
    normed = layer.under("input_layernorm").layer_norm(x, config["norm_epsilon"])
    x = x + attend(config, spec, layer.under("attention"), normed, window)
    normed = layer.under("post_layernorm").layer_norm(x, config["norm_epsilon"])
    return x + plain_mlp(config, layer.under("mlp"), normed, config["intermediate_size"], bias=bias)


def gpt_neox(config: Config, layer: Weights, x: Tensor, _index: int, window: int | None) -> Tensor:
    """Run attention and MLP side by side, each behind its own norm; the MLP is four times as wide."""
    spec = Attention(True, True, config["rotary_emb_base"], rotary_fraction=config["rotary_pct"])
    normed = layer.under("input_layernorm").layer_norm(x, LAYER_NORM_EPSILON)
    attention = attend(config, spec, layer.under("attention"), normed, window)
    normed = layer.under("post_attention_layernorm").layer_norm(x, LAYER_NORM_EPSILON)
    return x + attention + plain_mlp(config, layer.under("mlp"), normed, 4 * config["hidden_size"], bias=True)


def falcon(config: Config, layer: Weights, x: Tensor, _index: int, window: int | None) -> Tensor:
    """Run attention and MLP one after the other (RW), or side by side behind one norm (7B, 11B) or two (40B)."""
    bias, new = config["bias"], config["new_decoder_architecture"]
    alibi = config["position_embedding_type"] == "alibi_with_scale"
    spec = Attention(bias, bias, None if alibi else config["rotary_base"], alibi=alibi)
    normed = layer.under("input_layernorm").layer_norm(x, config["norm_epsilon"])
    attention = attend(config, spec, layer.under("attention"), normed, window)
    residual = x
    if not (new or config["parallel_attention"]):
        residual, attention = x + attention, torch.zeros_like(x)
        normed = layer.under("post_layernorm").layer_norm(residual, LAYER_NORM_EPSILON)
    elif new and config["num_ln_in_parallel_attn"] in (None, 2):
        normed = layer.under("mlp_layernorm").layer_norm(x, config["norm_epsilon"])
    output = plain_mlp(config, layer.under("mlp"), normed, config["intermediate_size"], bias=bias)
    return residual + attention + output


BLOCKS: dict[str, Block] = {
    **dict.fromkeys(LLAMAS, llama),
    **dict.fromkeys(QWENS, qwen),
    **dict.fromkeys(GEMMAS, gemma),
    "Phi3ForCausalLM": phi3,
    "GPT2LMHeadModel": gpt2,
    "GPTNeoXForCausalLM": gpt_neox,
    "FalconForCausalLM": falcon,
}
