"""What one rank of a model holds, in terms of a smaller model."""

from __future__ import annotations

import math
from dataclasses import replace

from trtkit.catalog.formats import DEFAULT_GROUP
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.plan.tensors import rules_of, target_shape


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


def group_of(model: ModelConfig, weights: str, group_size: int | None) -> int:
    """Return the input channels that share an INT4 scale: as the source has or the contract gives them.

    Otherwise it is the largest number that divides every layer's sides, as engines have none with others.
    """
    if model.kept and model.kept.group_size:
        return model.kept.group_size
    if group_size is not None or weights == "w4a8-awq":
        return group_size or DEFAULT_GROUP
    sides = [side for rule in rules_of(model) if rule.is_linear for side in target_shape(rule, model)[-2:]]
    return DEFAULT_GROUP if all(side % DEFAULT_GROUP == 0 for side in sides) else DEFAULT_GROUP // 2


def windows_of(model: ModelConfig, ranks: Parallelism) -> tuple[int | None, float]:
    """Return how far layers with a window look back, and what part of a stage's layers they are, at the least."""
    window, pattern = model.sliding_window, model.sliding_window_pattern
    if window is None or pattern is None:
        return window, float(window is not None)
    layers = layers_of_stage(model, ranks)
    # Every n-th layer sees everything; a stage may begin just before one of them.
    whole = layers // pattern if ranks.pp == 1 else math.ceil(layers / pattern)
    return window, 1 - whole / layers


def layers_of_stage(model: ModelConfig, ranks: Parallelism) -> int:
    """Return the layers of one pipeline stage, the larger number where they do not divide."""
    return math.ceil(model.num_layers / ranks.pp)
