"""Mixtures of experts in every layer: their tensors in place of the dense MLP's."""

from __future__ import annotations

from collections.abc import Iterable

from trtkit.catalog.architectures.architecture import Dim, Source, Split, TensorRule

_TRT = "transformer.layers.{layer}.mlp."

MOE_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu"}
"""The engine's fused branches have a name of their own."""
MOE_IGNORABLE = frozenset({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"})
"""Keys that matter in training only."""


def with_experts(
    dense: Iterable[TensorRule],
    prefix: str,
    *,
    gate: str = "gate_proj",
    up: str = "up_proj",
    down: str = "down_proj",
) -> tuple[TensorRule, ...]:
    """Return the rules with the MLP of ``dense`` replaced by experts, which the source has below ``prefix``."""
    expert = prefix + "experts.{expert}."
    return (
        *(rule for rule in dense if not rule.target.startswith(_TRT)),
        # The loader never quantizes the router, and computes it in float32.
        TensorRule(
            _TRT + "router.weight",
            (Source(prefix + "gate.weight", (Dim.EXPERTS, Dim.HIDDEN)),),
            dtype="float32",
        ),
        # One matrix for both branches, the activated one second: the reverse of `fc` and `gate` in a dense layer.
        TensorRule(
            _TRT + "fc.weight",
            (
                Source(f"{expert}{up}.weight", (Dim.EXPERT_INTERMEDIATE, Dim.HIDDEN)),
                Source(f"{expert}{gate}.weight", (Dim.EXPERT_INTERMEDIATE, Dim.HIDDEN)),
            ),
            Split.HALVES,
        ),
        TensorRule(
            _TRT + "proj.weight",
            (Source(f"{expert}{down}.weight", (Dim.HIDDEN, Dim.EXPERT_INTERMEDIATE)),),
            Split.COLUMNS,
        ),
    )
