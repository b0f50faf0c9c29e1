"""Llama 1 to 3 and everything published under its class name (SmolLM2, TinyLlama, ...)."""

from __future__ import annotations

from trtkit.catalog.architectures.architecture import (
    Architecture,
    Dim,
    RopeType,
    Source,
    Split,
    TensorRule,
    When,
)
from trtkit.catalog.architectures.fields import IGNORABLE, NEUTRAL, RESTATED

_HF = "model.layers.{layer}."
_TRT = "transformer.layers.{layer}."
_EMBEDDING = Source("model.embed_tokens.weight", (Dim.VOCAB, Dim.HIDDEN))


def _norm(target: str, source: str) -> TensorRule:
    return TensorRule(target, (Source(source, (Dim.HIDDEN,)),))


_LAYER = (
    _norm(_TRT + "input_layernorm.weight", _HF + "input_layernorm.weight"),
    TensorRule(
        _TRT + "attention.qkv.weight",
        (
            Source(_HF + "self_attn.q_proj.weight", (Dim.Q, Dim.HIDDEN)),
            Source(_HF + "self_attn.k_proj.weight", (Dim.KV, Dim.HIDDEN)),
            Source(_HF + "self_attn.v_proj.weight", (Dim.KV, Dim.HIDDEN)),
        ),
        Split.QKV,
    ),
    TensorRule(
        _TRT + "attention.qkv.bias",
        (
            Source(_HF + "self_attn.q_proj.bias", (Dim.Q,)),
            Source(_HF + "self_attn.k_proj.bias", (Dim.KV,)),
            Source(_HF + "self_attn.v_proj.bias", (Dim.KV,)),
        ),
        Split.QKV,
        When.ATTN_BIAS,
    ),
    TensorRule(
        _TRT + "attention.dense.weight",
        (Source(_HF + "self_attn.o_proj.weight", (Dim.HIDDEN, Dim.Q)),),
        Split.COLUMNS,
    ),
    # The bias of a row-parallel layer is added once, after the all-reduce: every rank holds all of it.
    TensorRule(
        _TRT + "attention.dense.bias",
        (Source(_HF + "self_attn.o_proj.bias", (Dim.HIDDEN,)),),
        when=When.ATTN_BIAS,
    ),
    _norm(_TRT + "post_layernorm.weight", _HF + "post_attention_layernorm.weight"),
    # TensorRT-LLM calls the branch with the activation `fc`, the other one `gate`; Hugging Face the reverse.
    TensorRule(
        _TRT + "mlp.fc.weight",
        (Source(_HF + "mlp.gate_proj.weight", (Dim.INTERMEDIATE, Dim.HIDDEN)),),
        Split.ROWS,
    ),
    TensorRule(
        _TRT + "mlp.fc.bias",
        (Source(_HF + "mlp.gate_proj.bias", (Dim.INTERMEDIATE,)),),
        Split.ROWS,
        When.MLP_BIAS,
    ),
    TensorRule(
        _TRT + "mlp.gate.weight",
        (Source(_HF + "mlp.up_proj.weight", (Dim.INTERMEDIATE, Dim.HIDDEN)),),
        Split.ROWS,
    ),
    TensorRule(
        _TRT + "mlp.gate.bias",
        (Source(_HF + "mlp.up_proj.bias", (Dim.INTERMEDIATE,)),),
        Split.ROWS,
        When.MLP_BIAS,
    ),
    TensorRule(
        _TRT + "mlp.proj.weight",
        (Source(_HF + "mlp.down_proj.weight", (Dim.HIDDEN, Dim.INTERMEDIATE)),),
        Split.COLUMNS,
    ),
    TensorRule(
        _TRT + "mlp.proj.bias",
        (Source(_HF + "mlp.down_proj.bias", (Dim.HIDDEN,)),),
        when=When.MLP_BIAS,
    ),
)

LLAMA = Architecture(
    name="LlamaForCausalLM",
    keys={
        "hidden_size": ("hidden_size",),
        "num_layers": ("num_hidden_layers",),
        "num_heads": ("num_attention_heads",),
        "num_kv_heads": ("num_key_value_heads",),
        "head_size": ("head_dim",),
        "intermediate_size": ("intermediate_size",),
        "vocab_size": ("vocab_size",),
        "hidden_act": ("hidden_act",),
        "norm_epsilon": ("rms_norm_eps",),
        "max_position_embeddings": ("max_position_embeddings",),
        "rotary_base": ("rope_theta",),
        "attn_bias": ("attention_bias", "bias"),
        "mlp_bias": ("mlp_bias",),
        "tie_word_embeddings": ("tie_word_embeddings",),
    },
    defaults={
        "num_kv_heads": None,  # as many as query heads
        "head_size": None,  # hidden_size / num_heads
        "hidden_act": "silu",
        "rotary_base": 10_000.0,
        "attn_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    activations={"silu": "silu", "swish": "silu"},
    rope_types={
        "linear": RopeType(("factor",), ("original_max_position_embeddings",)),
        "llama3": RopeType(
            ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        ),
        "yarn": RopeType(
            ("factor", "original_max_position_embeddings"),
            ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
            {"attention_factor": (), "truncate": (True,), "finetuned": (True, False)},
            together=("mscale", "mscale_all_dim"),
        ),
    },
    neutral=NEUTRAL,
    restated=RESTATED,
    ignorable=IGNORABLE,
    engine_config=lambda _: {"position_embedding_type": "rope_gpt_neox"},
    tensors=(
        TensorRule("transformer.vocab_embedding.weight", (_EMBEDDING,), Split.EMBEDDING),
        *_LAYER,
        _norm("transformer.ln_f.weight", "model.norm.weight"),
        TensorRule(
            "lm_head.weight",
            (Source("lm_head.weight", (Dim.VOCAB, Dim.HIDDEN)),),
            Split.VOCAB,
            When.UNTIED,
        ),
        TensorRule("lm_head.weight", (_EMBEDDING,), Split.VOCAB, When.TIED),
    ),
    ignored_tensors=("*.rotary_emb.inv_freq",),
)
