"""K before the rotary embedding, channel by channel: after the norm of keys where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trtkit.quantize.calibrate.layers import ModelLayers
from trtkit.quantize.calibrate.ranges import K_CACHE, Ranges

if TYPE_CHECKING:
    import torch
    from torch import nn


@contextmanager
def watching_key_norm(ranges: Ranges, layer: nn.Module, prefix: str) -> Iterator[None]:
    """Record what comes out of the norm of keys, if the decoder layer has one, while the block runs."""
    name = f"{prefix}.{K_CACHE}|x"

    def hook(_: nn.Module, __: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        # (1, tokens, heads, head_size), or with tokens and heads the other way round.
        tokens_first = output if ranges.tokens == output.shape[1] else output.transpose(1, 2)
        ranges.see(name, tokens_first[0].flatten(1))

    norms = [module for path, module in layer.named_modules() if path.endswith("k_norm")]
    handles = [norm.register_forward_hook(hook) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def keys_before_rotation(
    layers: ModelLayers, layer: int, prefix: str, found: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the maxima of K from those of its projection, where no norm has told them."""
    import torch

    name = f"{prefix}.{K_CACHE}|x"
    if name in found:
        return {}
    modules, orders = layers.keys(layer)
    rows = []
    for module, order in zip(modules, orders, strict=True):
        values = found[f"{module}|y"]
        rows += [values] if order is None else [values[part.start : part.stop] for part in order]
    start = layers.config.num_heads * layers.config.head_size
    return {name: torch.cat(rows)[start : start + layers.config.num_kv_heads * layers.config.head_size]}
