"""Largest magnitudes of what goes through the linear layers of one decoder layer, sample by sample.

They are kept as float32, whatever the model computes in; samples come one at a time, so that nothing is padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trtkit.errors import InputError
from trtkit.quantize.histogram import BINS, SHIFT

if TYPE_CHECKING:
    import torch
    from torch import nn

K_CACHE, V_CACHE, KV_CACHE = "k_cache", "v_cache", "kv_cache"
"""Stand for what the cache of a decoder layer keeps: ``|y`` are K and V as cached, ``|x`` is K before the rotation,
``|h`` how often both together have which magnitude."""
_NOT_FINITE = (
    "leave the sample out; if others fail too, the weights are damaged or overflow: run it in transformers"
)


class Ranges:
    """The maxima of one decoder layer, by ``name|x`` and ``name|y``, as 1-D float32 tensors."""

    def __init__(self) -> None:
        self.largest: dict[str, torch.Tensor] = {}
        self.counts: dict[str, torch.Tensor] = {}
        """Histograms, by ``name|h``."""
        self.origin = ""
        """The sample in turn, for errors."""
        self.tokens = 0
        """Its length."""

    def check(self, prefix: str, states: torch.Tensor) -> None:
        """Check what comes out of the decoder layer.

        Raises:
            InputError: There is NaN or infinity in it.
        """
        import torch

        if not torch.isfinite(states).all():
            message = f"what comes out of {prefix} is NaN or infinite in the sample {self.origin}"
            raise InputError(message, hint=_NOT_FINITE)

    def see(self, name: str, values: torch.Tensor) -> None:
        """Take in values, one row per token.

        Raises:
            InputError: There is NaN or infinity among them.
        """
        import torch

        found = values.abs().amax(0).float()
        if not torch.isfinite(found).all():
            what = {"x": "what goes into", "y": "what comes out of"}[name[-1]]
            message = f"{what} {name[:-2]} is NaN or infinite in the sample {self.origin}"
            raise InputError(message, hint=_NOT_FINITE)
        known = self.largest.get(name)
        self.largest[name] = found if known is None else torch.maximum(known, found)

    def count(self, name: str, values: torch.Tensor) -> None:
        """Count magnitudes, all finite, by bin."""
        import torch

        bits = values.abs().float().contiguous().view(torch.int32) >> SHIFT
        found = torch.bincount(bits.flatten(), minlength=BINS)
        self.counts[name] = found + self.counts[name] if name in self.counts else found


class KvRecorder:
    """Makes caches that keep nothing and tell what they should have kept."""

    def __init__(self, ranges: Ranges, prefix: str, num_kv_heads: int) -> None:
        self._ranges = ranges
        self._prefix = prefix
        self._num_kv_heads = num_kv_heads

    def cache(self) -> Any:
        """Return one for one sample."""
        from transformers import DynamicCache

        see = self._see

        class Telling(DynamicCache):
            """Hands keys and values back."""

            def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> Any:
                see(K_CACHE, key_states)
                see(V_CACHE, value_states)
                return key_states, value_states

        return Telling()

    def _see(self, name: str, states: torch.Tensor) -> None:
        """Take ``(1, heads, tokens, head_size)``; some models repeat each KV head for its queries before."""
        repeats = states.shape[1] // self._num_kv_heads
        rows = states[0, ::repeats].transpose(0, 1).flatten(1)
        self._ranges.see(f"{self._prefix}.{name}|y", rows)
        self._ranges.count(f"{self._prefix}.{KV_CACHE}|h", rows)


def linear_modules(layer: nn.Module, prefix: str) -> dict[str, nn.Module]:
    """Return the linear layers inside of a module by their full names."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    found = layer.named_modules()
    return {f"{prefix}.{name}": module for name, module in found if isinstance(module, (nn.Linear, Conv1D))}


def rows_of(module: nn.Module) -> torch.Tensor:
    """Return the weight of a linear layer as ``(out, in)``."""
    from transformers.pytorch_utils import Conv1D

    weight: torch.Tensor = module.get_parameter("weight").detach()
    return weight.T if isinstance(module, Conv1D) else weight


@contextmanager
def recording(
    ranges: Ranges, modules: Mapping[str, nn.Module], also: Callable[[str, torch.Tensor], None]
) -> Iterator[None]:
    """Watch linear layers while the block runs; ``also`` sees what goes into each, one row per token."""

    def watch(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            rows = inputs[0].reshape(-1, inputs[0].shape[-1])
            ranges.see(f"{name}|x", rows)
            ranges.see(f"{name}|y", output.reshape(-1, output.shape[-1]))
            also(name, rows)

        return module.register_forward_hook(hook)

    handles = [watch(name, module) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
