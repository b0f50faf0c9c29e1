"""Mixtral: Mistral's attention, and experts that a router chooses from in every layer."""

from __future__ import annotations

import dataclasses

from trtkit.catalog.architectures.architecture import When
from trtkit.catalog.architectures.experts import MOE_ACTIVATIONS, MOE_IGNORABLE, with_experts
from trtkit.catalog.architectures.mistral import MISTRAL

_DENSE = (rule for rule in MISTRAL.tensors if rule.when is not When.MLP_BIAS)

MIXTRAL = dataclasses.replace(
    MISTRAL,
    name="MixtralForCausalLM",
    keys={
        **MISTRAL.keys,
        "mlp_bias": (),
        "num_experts": ("num_local_experts", "num_experts"),
        "experts_per_token": ("num_experts_per_tok",),
        "expert_intermediate_size": ("intermediate_size",),
        "shared_intermediate_size": (),
        "renormalize": (),
    },
    defaults={
        **MISTRAL.defaults,
        "rotary_base": 1_000_000.0,
        "shared_intermediate_size": None,  # no shared expert
        "renormalize": True,
    },
    activations=MOE_ACTIVATIONS,
    neutral={**MISTRAL.neutral, "mlp_bias": (False,)},
    ignorable=MISTRAL.ignorable | MOE_IGNORABLE,
    tensors=with_experts(_DENSE, "model.layers.{layer}.block_sparse_moe.", gate="w1", up="w3", down="w2"),
    sliding_window_default=None,
)
