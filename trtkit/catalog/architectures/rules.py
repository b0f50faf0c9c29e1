"""Rules of tensors that belong together: weight and bias, embedding and head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures.architecture import Arrange, Dim, Source, Split, TensorRule, When


def linear(
    target: str,
    source: str,
    shape: tuple[Dim, Dim],
    split: Split,
    *,
    arrange: Arrange = Arrange.STACKED,
    bias: When = When.ALWAYS,
) -> tuple[TensorRule, TensorRule]:
    """Return the weight and the bias of a linear layer whose weight has ``shape`` in the source.

    ``bias`` says which models have it; a family without biases names a flag that it never sets.
    """
    transposed = arrange is Arrange.TRANSPOSED
    weight = TensorRule(f"{target}.weight", (Source(f"{source}.weight", shape),), split, arrange=arrange)
    return weight, TensorRule(
        f"{target}.bias",
        (Source(f"{source}.bias", (shape[transposed],)),),
        # The bias of a row-parallel layer is added once, after the all-reduce: every rank holds all of it.
        Split.NONE if split is Split.COLUMNS else split,
        bias,
        Arrange.STACKED if transposed else arrange,
    )


def rms_norm(target: str, source: str, size: Dim = Dim.HIDDEN) -> TensorRule:
    """Return the weight of a norm that has no bias."""
    return TensorRule(f"{target}.weight", (Source(f"{source}.weight", (size,)),))


def layer_norm(
    target: str, source: str, only: Mapping[str, Any] | None = None
) -> tuple[TensorRule, TensorRule]:
    """Return the weight and the bias of a LayerNorm."""
    weight, bias = (
        TensorRule(f"{target}.{part}", (Source(f"{source}.{part}", (Dim.HIDDEN,)),), only=only or {})
        for part in ("weight", "bias")
    )
    return weight, bias


def vocabulary(embedding: str, head: str) -> tuple[TensorRule, TensorRule, TensorRule]:
    """Return the embedding and the head, which is a copy of the embedding when they are tied."""
    table, own = (Source(name, (Dim.VOCAB, Dim.HIDDEN)) for name in (embedding, head))
    return (
        TensorRule("transformer.vocab_embedding.weight", (table,), Split.EMBEDDING),
        TensorRule("lm_head.weight", (own,), Split.VOCAB, When.UNTIED),
        TensorRule("lm_head.weight", (table,), Split.VOCAB, When.TIED),
    )
