"""GPT-NeoX and Pythia: attention and MLP side by side, heads that are rotated in part, Q, K and V head by head."""

from __future__ import annotations

from trtkit.catalog.architectures.architecture import Architecture, Arrange, Dim, Split
from trtkit.catalog.architectures.fields import IGNORABLE, NEUTRAL, RESTATED
from trtkit.catalog.architectures.rules import layer_norm, linear, vocabulary

_HF = "gpt_neox.layers.{layer}."
_TRT = "transformer.layers.{layer}."

GPT_NEOX = Architecture(
    name="GPTNeoXForCausalLM",
    keys={
        "hidden_size": ("hidden_size",),
        "num_layers": ("num_hidden_layers",),
        "num_heads": ("num_attention_heads",),
        "num_kv_heads": (),
        "head_size": (),
        "intermediate_size": (),
        "vocab_size": ("vocab_size",),
        "hidden_act": ("hidden_act",),
        "norm_epsilon": (),
        "max_position_embeddings": ("max_position_embeddings",),
        "rotary_base": ("rotary_emb_base", "rope_theta"),
        "rotary_pct": ("rotary_pct", "partial_rotary_factor"),
        "attn_bias": (),
        "mlp_bias": (),
        "tie_word_embeddings": ("tie_word_embeddings",),
    },
    defaults={
        "num_kv_heads": None,
        "head_size": None,
        "intermediate_size": None,
        "hidden_act": "gelu",
        "norm_epsilon": 1e-5,
        "rotary_base": 10_000.0,
        "rotary_pct": 0.25,
        "attn_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    },
    activations=dict.fromkeys(("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh"), "gelu")
    | {"relu": "relu"},
    rope_types={},
    neutral=NEUTRAL | {"use_parallel_residual": (True,), "attention_bias": (True,)},
    # What the engine takes for granted: width, epsilon and heads cannot be set.
    restated=RESTATED
    | {
        "head_dim": "head_size",
        "intermediate_size": "intermediate_size",
        "layer_norm_eps": "norm_epsilon",
        "num_key_value_heads": "num_kv_heads",
    },
    ignorable=IGNORABLE | {"attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout_prob"},
    engine_config=lambda config: {
        "position_embedding_type": "rope_gpt_neox",
        "rotary_pct": config.rotary_pct,
        "rotary_emb_base": config.rotary_base,
    },
    engine_keys=("rotary_pct", "rotary_emb_base"),
    model_fields=lambda content: {"rotary_pct": content["rotary_pct"]},
    tensors=(
        *vocabulary("gpt_neox.embed_in.weight", "embed_out.weight"),
        *layer_norm(_TRT + "input_layernorm", _HF + "input_layernorm"),
        *linear(
            _TRT + "attention.qkv",
            _HF + "attention.query_key_value",
            (Dim.QKV, Dim.HIDDEN),
            Split.QKV,
            arrange=Arrange.PER_GROUP,
        ),
        *linear(_TRT + "attention.dense", _HF + "attention.dense", (Dim.HIDDEN, Dim.Q), Split.COLUMNS),
        *layer_norm(_TRT + "post_attention_layernorm", _HF + "post_attention_layernorm"),
        *linear(_TRT + "mlp.fc", _HF + "mlp.dense_h_to_4h", (Dim.INTERMEDIATE, Dim.HIDDEN), Split.ROWS),
        *linear(_TRT + "mlp.proj", _HF + "mlp.dense_4h_to_h", (Dim.HIDDEN, Dim.INTERMEDIATE), Split.COLUMNS),
        *layer_norm("transformer.ln_f", "gpt_neox.final_layer_norm"),
    ),
    # The causal mask and the rotary table
    ignored_tensors=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
)
