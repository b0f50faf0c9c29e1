"""Qwen 3, dense and with experts: norms on every head of queries and keys, no biases. Needs TensorRT-LLM 1.0."""

from __future__ import annotations

import dataclasses

from trtkit.catalog.architectures.architecture import Dim, Source, TensorRule, When
from trtkit.catalog.architectures.experts import MOE_ACTIVATIONS, MOE_IGNORABLE, with_experts
from trtkit.catalog.architectures.qwen2 import QWEN2, engine_config
from trtkit.catalog.architectures.qwen2_moe import MOE_KEYS, MOE_NEUTRAL, MOE_WIDTHS

_HF = "model.layers.{layer}."
_NORMS = tuple(
    TensorRule(
        "transformer.layers.{layer}.attention." + f"{side}_layernorm.weight",
        (Source(_HF + f"self_attn.{side}_norm.weight", (Dim.HEAD,)),),
    )
    for side in "qk"
)

QWEN3 = dataclasses.replace(
    QWEN2,
    name="Qwen3ForCausalLM",
    keys={**QWEN2.keys, "attn_bias": ()},
    defaults={
        # Without the key transformers assumes heads of 128, whatever the other sizes: ask instead.
        **{key: value for key, value in QWEN2.defaults.items() if key != "head_size"},
        "attn_bias": False,
    },
    # With it the source has a bias on the output projection too, where the engine has no place for one.
    neutral={**QWEN2.neutral, "attention_bias": (False,)},
    engine_config=lambda model: engine_config(model, "qwen3"),
    tensors=(*(rule for rule in QWEN2.tensors if rule.when is not When.ATTN_BIAS), *_NORMS),
)

QWEN3_MOE = dataclasses.replace(
    QWEN3,
    name="Qwen3MoeForCausalLM",
    keys={**QWEN3.keys, **MOE_KEYS, "shared_intermediate_size": ()},
    defaults={
        **QWEN3.defaults,
        "head_size": None,  # hidden_size / num_heads
        "shared_intermediate_size": None,  # no shared expert
        "renormalize": False,
    },
    activations=MOE_ACTIVATIONS,
    neutral={**QWEN3.neutral, **MOE_NEUTRAL},
    ignorable=QWEN3.ignorable | MOE_IGNORABLE,
    engine_config=lambda model: engine_config(model, "qwen3_moe"),
    engine_keys=(*QWEN3.engine_keys, *MOE_WIDTHS),
    tensors=with_experts(QWEN3.tensors, _HF + "mlp."),
)
