"""Experts as linear layers of their own: transformers joins them into two tensors, in which no hook can look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trtkit.errors import InputError
from trtkit.quantize.calibrate.purpose import Unreached

if TYPE_CHECKING:
    import torch
    from torch import nn


_NAMED = 3
"""How many of them an error names."""


def separate_experts(layer: nn.Module, names: Sequence[str]) -> None:
    """Replace the joined experts of a decoder layer, on the meta device.

    Args:
        layer: The decoder layer.
        names: What the source calls gate, up and down.
    """
    for module in list(layer.modules()):
        for name, child in module.named_children():
            if hasattr(child, "gate_up_proj") and hasattr(child, "num_experts"):
                setattr(module, name, _experts(child, names))


def _experts(joined: Any, names: Sequence[str]) -> nn.Module:
    from torch import nn

    gate, up, down = names
    width, inner = joined.hidden_dim, joined.intermediate_dim

    def linear(inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False, device="meta")

    class Expert(nn.Module):
        """A gated MLP."""

        def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
            super().__init__()
            self.act = act
            self.add_module(gate, linear(width, inner))
            self.add_module(up, linear(width, inner))
            self.add_module(down, linear(inner, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            opened = self.act(self.get_submodule(gate)(x)) * self.get_submodule(up)(x)
            made: torch.Tensor = self.get_submodule(down)(opened)
            return made

    class Experts(nn.ModuleList):
        """Routes tokens."""

        def forward(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            """Return the weighted sum of the chosen experts: ``(tokens, hidden)``, indices ``(tokens, k)``."""
            import torch

            out = torch.zeros_like(x)
            for number, expert in enumerate(self):
                tokens, place = torch.where(index == number)
                if len(tokens):
                    found = expert(x[tokens]) * weights[tokens, place, None]
                    out.index_add_(0, tokens, found.to(out.dtype))
            return out

    return Experts([Expert(joined.act_fn) for _ in range(joined.num_experts)])


def borrow(largest: dict[str, torch.Tensor], kinds: Sequence[Sequence[str]], policy: Unreached) -> list[str]:
    """Give experts that no token came to the largest ranges of their neighbours; return their names.

    Args:
        largest: Maxima of a decoder layer, which are added to.
        kinds: Linear layers of experts, those of the same kind together.
        policy: Whether that is allowed.

    Raises:
        InputError: It is not; all of them are named.
    """
    import torch

    lacking = [name for names in kinds for name in names if f"{name}|x" not in largest]
    if lacking and policy is Unreached.ABORT:
        some = ", ".join(lacking[:_NAMED]) + (", ..." if len(lacking) > _NAMED else "")
        count = f"{len(lacking)} of {sum(map(len, kinds))} linear layers of experts"
        message = f"no token of the samples came to {count}: {some}"
        hint = "use more samples (twice as many, to begin with), or --unreached borrow: they get the largest ranges"
        hint += " of the layer's other experts; layers after this one have not been looked at"
        raise InputError(message, hint=hint)
    for names in kinds:
        for part in ("x", "y"):
            seen = [largest[f"{name}|{part}"] for name in names if f"{name}|{part}" in largest]
            widest = torch.stack(seen).amax(0)
            largest |= {f"{name}|{part}": widest for name in names if name in lacking}
    return lacking
