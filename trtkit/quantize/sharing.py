"""Which linear layers read the same input, and from where it comes."""

from __future__ import annotations

from collections.abc import Sequence

from trtkit.quantize.linear import Linear

_BRANCHES = {"fc": "fc", "gate": "fc"}


def sharing_input(linears: Sequence[Linear]) -> list[tuple[Linear, ...]]:
    """Return the layers in groups of those with the same input: the branches of a gated MLP, others alone.

    Q, K and V are one layer already.
    """
    groups: dict[tuple[int | None, str], list[Linear]] = {}
    for linear in linears:
        block, _, last = linear.name.rpartition(".")
        key = (linear.tensor.target.layer, f"{block}.{_BRANCHES.get(last, last)}")
        groups.setdefault(key, []).append(linear)
    return [tuple(group) for group in groups.values()]
