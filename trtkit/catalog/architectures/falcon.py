"""Falcon: RW with ALiBi (attention, then MLP), 7B (side by side), 40B and 11B (KV heads, two norms or one)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures.architecture import Architecture, Arrange, Dim, Numeric, Split, When
from trtkit.catalog.architectures.fields import IGNORABLE, NEUTRAL, RESTATED
from trtkit.catalog.architectures.rules import layer_norm, linear, vocabulary

_HF = "transformer.h.{layer}."
_TRT = "transformer.layers.{layer}."


def _as_built(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Name the KV heads and norms that a layer has: some keys hold values that its kind does not go by.

    7B has one KV head, and transformers 5 saves ``num_kv_heads: 71`` for it; 40B has two norms with and without the
    key. Values that fit neither reading stay, for the weights or the reader to refuse.
    """
    new = dict(raw)
    if raw.get("new_decoder_architecture") is True:
        if raw.get("num_ln_in_parallel_attn") is None:
            new["num_ln_in_parallel_attn"] = 2
        return new
    if raw.get("num_ln_in_parallel_attn") is None:
        new["num_ln_in_parallel_attn"] = 1
    if raw.get("num_kv_heads") in (None, raw.get("num_attention_heads")):
        new["num_kv_heads"] = raw.get("num_attention_heads") if raw.get("multi_query") is False else 1
    return new


_ONE_NORM, _TWO_NORMS = (
    {"num_ln_in_parallel_attn": 1},
    {
        "num_ln_in_parallel_attn": 2,
        "new_decoder_architecture": True,
    },
)

FALCON = Architecture(
    name="FalconForCausalLM",
    keys={
        "hidden_size": ("hidden_size", "n_embed"),
        "num_layers": ("num_hidden_layers",),
        "num_heads": ("num_attention_heads",),
        "num_kv_heads": ("num_kv_heads",),
        "head_size": (),
        "intermediate_size": ("ffn_hidden_size",),
        "vocab_size": ("vocab_size",),
        "hidden_act": ("activation",),
        "norm_epsilon": (),
        "max_position_embeddings": ("max_position_embeddings",),
        "rotary_base": ("rope_theta",),
        "attn_bias": ("bias",),
        "mlp_bias": ("bias",),
        "tie_word_embeddings": ("tie_word_embeddings",),
    },
    defaults={
        "num_kv_heads": None,
        "head_size": None,
        "intermediate_size": None,
        "hidden_act": "gelu",
        "norm_epsilon": 1e-5,
        "max_position_embeddings": 2048,
        "rotary_base": 10_000.0,
        "attn_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
    },
    activations=dict.fromkeys(("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh"), "gelu")
    | {"relu": "relu"},
    # The class hands no rotary_scaling on.
    rope_types={},
    neutral=NEUTRAL | {"multi_query": (True, False), "attention_bias": (False,), "mlp_bias": (False,)},
    # What the engine takes for granted: some of its norms have a fixed epsilon, heads have no size of their own.
    restated=RESTATED | {"head_dim": "head_size", "layer_norm_epsilon": "norm_epsilon"},
    ignorable=IGNORABLE | {"auto_map", "ff_factor"},
    numerics={
        "position_embedding_type": Numeric(
            # ALiBi is divided by sqrt(head size) like the scores.
            ("alibi",),
            False,
            bool,
            words={False: "rope_gpt_neox", True: "alibi_with_scale"},
        ),
        "new_decoder_architecture": Numeric(("new_decoder_architecture",), False, bool),
        "parallel_attention": Numeric(("parallel_attn",), True, bool),
        "num_ln_in_parallel_attn": Numeric(("num_ln_in_parallel_attn",), kind=int),
    },
    adapt=_as_built,
    engine_config=lambda config: {"bias": config.attn_bias},
    tensors=(
        *vocabulary("transformer.word_embeddings.weight", "lm_head.weight"),
        *layer_norm(_TRT + "input_layernorm", _HF + "input_layernorm", _ONE_NORM),
        *layer_norm(_TRT + "input_layernorm", _HF + "ln_attn", _TWO_NORMS),
        *layer_norm(_TRT + "mlp_layernorm", _HF + "ln_mlp", _TWO_NORMS),
        *layer_norm(_TRT + "post_layernorm", _HF + "post_attention_layernorm", {"parallel_attention": False}),
        *linear(
            _TRT + "attention.qkv",
            _HF + "self_attention.query_key_value",
            (Dim.QKV, Dim.HIDDEN),
            Split.QKV,
            arrange=Arrange.PER_GROUP,
            bias=When.ATTN_BIAS,
        ),
        *linear(
            _TRT + "attention.dense",
            _HF + "self_attention.dense",
            (Dim.HIDDEN, Dim.Q),
            Split.COLUMNS,
            bias=When.ATTN_BIAS,
        ),
        *linear(
            _TRT + "mlp.fc",
            _HF + "mlp.dense_h_to_4h",
            (Dim.INTERMEDIATE, Dim.HIDDEN),
            Split.ROWS,
            bias=When.ATTN_BIAS,
        ),
        *linear(
            _TRT + "mlp.proj",
            _HF + "mlp.dense_4h_to_h",
            (Dim.HIDDEN, Dim.INTERMEDIATE),
            Split.COLUMNS,
            bias=When.ATTN_BIAS,
        ),
        *layer_norm("transformer.ln_f", "transformer.ln_f"),
    ),
    ignored_tensors=("*.rotary_emb.inv_freq", "*.maybe_rotary.inv_freq"),
)
