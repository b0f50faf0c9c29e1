"""Ranges of the head, whose weight is read block by block: it is larger than any layer of small models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.checkpoint.safetensors import TensorInfo
from trtkit.quantize.calibrate.ranges import Ranges
from trtkit.quantize.calibrate.samples import SampleSet
from trtkit.quantize.calibrate.skeleton import Skeleton
from trtkit.quantize.calibrate.state import HiddenStates
from trtkit.quantize.calibrate.weights import load, rows_between

if TYPE_CHECKING:
    import torch

_BLOCK_BYTES = 64 << 20


def head_ranges(
    skeleton: Skeleton, hidden: HiddenStates, samples: SampleSet, name: str, weight: TensorInfo
) -> dict[str, torch.Tensor]:
    """Return ``name|x``, ``|y`` and ``|w``."""
    import torch

    outputs, rows, ranges = [], [], Ranges()
    step = max(1, _BLOCK_BYTES // (weight.shape[1] * skeleton.dtype.itemsize))
    for start in range(0, weight.shape[0], step):
        block = load(rows_between(weight, start, start + step), skeleton.dtype, skeleton.device)
        part = f"{name}|y"
        ranges.largest.pop(part, None)
        for number, sample in enumerate(samples.samples):
            ranges.origin = sample.origin
            states = skeleton.normalize(hidden.read(number).to(skeleton.device))[0]
            if not start:
                ranges.see(f"{name}|x", states)
            ranges.see(part, states @ block.T)
        outputs.append(ranges.largest.pop(part))
        rows.append(block.abs().amax(1).float())
    found = {f"{name}|x": ranges.largest[f"{name}|x"]}
    return found | {f"{name}|y": torch.cat(outputs), f"{name}|w": torch.cat(rows)}
