"""What one rank of a model holds, in terms of a smaller model."""

from __future__ import annotations

import math
from dataclasses import replace

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism


def share_of(model: ModelConfig, ranks: Parallelism) -> ModelConfig:
    """Return the sizes of one rank's tensors; the number of layers and of experts stays that of the whole model.

    KV heads are divided, and no rank has less than one: from ``num_kv_heads`` ranks on each head is held more than
    once. The vocabulary is padded to a multiple of the ranks.
    """
    tp, moe = ranks.tp, model.moe
    if moe is not None:
        moe = replace(
            moe,
            intermediate_size=moe.intermediate_size // ranks.moe_tp,
            shared_intermediate_size=moe.shared_intermediate_size // tp,
        )
    return replace(
        model,
        num_heads=model.num_heads // tp,
        num_kv_heads=max(1, model.num_kv_heads // tp),
        intermediate_size=model.intermediate_size // tp,
        vocab_size=math.ceil(model.vocab_size / tp),
        moe=moe,
    )


def layers_of_stage(model: ModelConfig, ranks: Parallelism) -> int:
    """Return the layers of one pipeline stage, the larger number where they do not divide."""
    return math.ceil(model.num_layers / ranks.pp)
