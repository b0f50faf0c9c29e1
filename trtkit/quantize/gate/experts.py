"""Experts whose inputs are quantized: transformers keeps all of a layer in one module, without a seam in between."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from trtkit.errors import InputError
from trtkit.quantize.gate.activation import treat
from trtkit.quantize.gate.linear import Activation

if TYPE_CHECKING:
    from torch import Tensor, nn


def treat_experts(model: nn.Module, layer: int, parts: Mapping[str, Activation]) -> None:
    """Make the experts of a layer treat the inputs of their two steps, ``fc`` and ``proj``.

    Raises:
        InputError: The layer has no such module.
    """
    found = [
        module
        for name, module in model.named_modules()
        if f".layers.{layer}." in name and hasattr(module, "gate_up_proj") and hasattr(module, "down_proj")
    ]
    if len(found) != 1 or found[0].gate_up_proj.ndim != 3:
        raise InputError(f"{type(model).__name__} keeps its experts in another way than the gate knows")
    found[0].forward = partial(_forward, found[0], parts)


def _forward(
    experts: Any, parts: Mapping[str, Activation], hidden: Tensor, chosen: Tensor, shares: Tensor
) -> Tensor:
    """Add up what the chosen experts make of tokens ``(count, hidden)``, each with its share."""
    import torch
    from torch.nn import functional

    result = torch.zeros_like(hidden)
    inputs = _treated(hidden, parts, "fc")
    for expert in sorted(set(chosen.flatten().tolist())):
        token, place = torch.where(chosen == expert)
        gate, up = functional.linear(inputs[token], experts.gate_up_proj[expert]).chunk(2, dim=-1)
        inner = _treated(experts.act_fn(gate) * up, parts, "proj")
        output = functional.linear(inner, experts.down_proj[expert]) * shares[token, place, None]
        result.index_add_(0, token, output.to(result.dtype))
    return result


def _treated(x: Tensor, parts: Mapping[str, Activation], name: str) -> Tensor:
    return treat(x, parts[name]) if name in parts else x
