"""GPT-2: learned positions, LayerNorm, biases everywhere, and weights stored the other way round."""

from __future__ import annotations

from trtkit.catalog.architectures.architecture import (
    Architecture,
    Arrange,
    Dim,
    Source,
    Split,
    TensorRule,
)
from trtkit.catalog.architectures.fields import IGNORABLE, NEUTRAL, RESTATED
from trtkit.catalog.architectures.rules import layer_norm, linear, vocabulary

_HF = "transformer.h.{layer}."
_TRT = "transformer.layers.{layer}."


def _conv1d(target: str, source: str, shape: tuple[Dim, Dim], split: Split) -> tuple[TensorRule, TensorRule]:
    return linear(_TRT + target, _HF + source, shape, split, arrange=Arrange.TRANSPOSED)


GPT2 = Architecture(
    name="GPT2LMHeadModel",
    keys={
        "hidden_size": ("n_embd", "hidden_size"),
        "num_layers": ("n_layer", "num_hidden_layers"),
        "num_heads": ("n_head", "num_attention_heads"),
        "num_kv_heads": (),
        "head_size": (),
        "intermediate_size": ("n_inner",),
        "vocab_size": ("vocab_size",),
        "hidden_act": ("activation_function",),
        "norm_epsilon": ("layer_norm_epsilon",),
        "max_position_embeddings": ("n_positions", "max_position_embeddings"),
        "rotary_base": (),
        "attn_bias": (),
        "mlp_bias": (),
        "tie_word_embeddings": ("tie_word_embeddings",),
    },
    defaults={
        "num_kv_heads": None,
        "head_size": None,
        "intermediate_size": None,
        "hidden_act": "gelu_new",
        "norm_epsilon": 1e-5,
        "rotary_base": 10_000.0,  # nothing is rotated
        "attn_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    activations=dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"), "gelu")
    | {"relu": "relu"},
    rope_types={},
    neutral=NEUTRAL,
    restated=RESTATED
    | {"head_dim": "head_size", "n_ctx": "max_position_embeddings", "intermediate_size": "intermediate_size"},
    ignorable=IGNORABLE
    | {
        "reorder_and_upcast_attn",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    },
    engine_config=lambda _: {
        "position_embedding_type": "learned_absolute",
        "gpt_variant": "gpt2",
        "bias": True,
    },
    tensors=(
        *vocabulary("transformer.wte.weight", "lm_head.weight"),
        TensorRule(
            "transformer.position_embedding.weight",
            (Source("transformer.wpe.weight", (Dim.POSITIONS, Dim.HIDDEN)),),
        ),
        *layer_norm(_TRT + "input_layernorm", _HF + "ln_1"),
        *_conv1d("attention.qkv", "attn.c_attn", (Dim.HIDDEN, Dim.QKV), Split.QKV),
        *_conv1d("attention.dense", "attn.c_proj", (Dim.Q, Dim.HIDDEN), Split.COLUMNS),
        *layer_norm(_TRT + "post_layernorm", _HF + "ln_2"),
        *_conv1d("mlp.fc", "mlp.c_fc", (Dim.HIDDEN, Dim.INTERMEDIATE), Split.ROWS),
        *_conv1d("mlp.proj", "mlp.c_proj", (Dim.INTERMEDIATE, Dim.HIDDEN), Split.COLUMNS),
        *layer_norm("transformer.ln_f", "transformer.ln_f"),
    ),
    # The causal mask
    ignored_tensors=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    optional_prefix="transformer.",
)
