"""Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, chosen experts, and one expert that every token visits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures.architecture import Dim, Source, Split, TensorRule
from trtkit.catalog.architectures.experts import MOE_ACTIVATIONS, MOE_IGNORABLE, with_experts
from trtkit.catalog.architectures.qwen2 import QWEN2, engine_config

_HF = "model.layers.{layer}.mlp."
_TRT = "transformer.layers.{layer}.mlp."

MOE_KEYS = {
    "num_experts": ("num_experts", "num_local_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_intermediate_size": ("moe_intermediate_size",),
    "renormalize": ("norm_topk_prob",),
}
MOE_WIDTHS = ("moe_intermediate_size", "moe_shared_expert_intermediate_size")
MOE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # The engine has experts in every layer.
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
}

_SHARED_EXPERT = (
    TensorRule(
        _TRT + "shared_expert.fc.weight",
        (
            Source(_HF + "shared_expert.up_proj.weight", (Dim.SHARED_INTERMEDIATE, Dim.HIDDEN)),
            Source(_HF + "shared_expert.gate_proj.weight", (Dim.SHARED_INTERMEDIATE, Dim.HIDDEN)),
        ),
        Split.HALVES,
    ),
    TensorRule(
        _TRT + "shared_expert.proj.weight",
        (Source(_HF + "shared_expert.down_proj.weight", (Dim.HIDDEN, Dim.SHARED_INTERMEDIATE)),),
        Split.COLUMNS,
    ),
    # In the checkpoint's data type, unlike the router; quantization leaves both alone.
    TensorRule(
        _TRT + "shared_expert_gate.weight",
        (Source(_HF + "shared_expert_gate.weight", (Dim.ONE, Dim.HIDDEN)),),
    ),
)

QWEN2_MOE = dataclasses.replace(
    QWEN2,
    name="Qwen2MoeForCausalLM",
    keys={**QWEN2.keys, **MOE_KEYS, "shared_intermediate_size": ("shared_expert_intermediate_size",)},
    defaults={**QWEN2.defaults, "renormalize": False},
    activations=MOE_ACTIVATIONS,
    neutral={**QWEN2.neutral, **MOE_NEUTRAL},
    ignorable=QWEN2.ignorable | MOE_IGNORABLE,
    engine_config=lambda model: engine_config(model, "qwen2_moe"),
    engine_keys=(*QWEN2.engine_keys, *MOE_WIDTHS),
    tensors=(*with_experts(QWEN2.tensors, _HF), *_SHARED_EXPERT),
)
