"""Linear layers on their way into a checkpoint: which there are, and their weights block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trtkit.catalog.schemes import Scheme, misfits
from trtkit.checkpoint.blocks import row_blocks
from trtkit.checkpoint.jobs import Job, Layout, Target, plain_jobs
from trtkit.checkpoint.kernels import Floats, Kernels
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array, TensorInfo
from trtkit.errors import Problem

_BLOCK = 1 << 18
"""Elements that are worked on at once: 1 MiB of float32 stays near the core, and calls are few."""

Parts = Mapping[str, Target]
"""Targets of a linear layer by what follows its name."""


class Block(NamedTuple):
    """Consecutive rows of a layer's weight, all experts' rows taken together."""

    row: int
    values: Array
    source: TensorInfo


@dataclass(frozen=True)
class Linear:
    """One linear layer."""

    tensor: MappedTensor
    layout: Layout
    all_bytes: int
    """Of all linear layers' sources: what there is to do."""

    @property
    def name(self) -> str:
        """Its name inside of the decoder layer, for instance ``attention.qkv``."""
        return local_name(self.tensor).removesuffix(".weight")

    @property
    def rows(self) -> int:
        """Output rows, of one expert."""
        return self.tensor.target.shape[-2]

    def parts(self, scheme: Scheme, quantization: Mapping[str, Any]) -> Parts:
        """Return what the checkpoint has of it."""
        target = self.tensor.target
        found = [part for part in scheme.parts if part.applies(target.name, quantization)]
        return {part.suffix: self.layout.part(target, part, 1) for part in found}

    def blocks(self) -> Iterator[Block]:
        """Yield the weight front to back; a block is valid until the next one is asked for."""
        row, rule = 0, self.tensor.target.rule
        for source, rows in row_blocks(self.tensor.plain, rule.arrange, self.layout.config):
            step = block_rows(rows.shape[1])
            for start in range(0, len(rows), step):
                yield Block(row + start, rows[start : start + step], source)
            row += len(rows)


def local_name(tensor: MappedTensor) -> str:
    """Return a tensor's name inside of its decoder layer: ``mlp.fc.weight``."""
    return tensor.target.name.split(".", 3)[-1] if tensor.target.layer is not None else tensor.target.name


def block_rows(columns: int) -> int:
    """Return the most rows that a block has."""
    return max(1, _BLOCK // columns)


def block_amax(kernels: Kernels, block: Block, axis: int) -> Floats:
    """Return the largest magnitudes of a block along ``axis``.

    Raises:
        InputError: There is NaN or infinity in it.
    """
    return kernels.amax(block.values, axis, name=block.source.name, path=block.source.path)


def linears(mapped: Sequence[MappedTensor], layout: Layout) -> list[Linear]:
    """Return the layers that quantization replaces."""
    found = [tensor for tensor in mapped if tensor.target.rule.is_linear]
    all_bytes = sum(
        info.nbytes for tensor in found for source in tensor.sources for info in source.parts.values()
    )
    return [Linear(tensor, layout, all_bytes) for tensor in found]


def others(mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
    """Return copies of everything that is no linear layer."""
    return plain_jobs([tensor for tensor in mapped if not tensor.target.rule.is_linear], layout)


def scalar(value: float) -> Array:
    """Return a piece of a target with one float32."""
    return np.full((1, 1), value, np.float32)


def quantized_problems(mapped: Sequence[MappedTensor], weights: str) -> list[Problem]:
    """Return the layers that the source has quantized already."""
    return [
        Problem(
            f"is quantized already and would lose twice on its way to {weights}",
            key=source.name,
            hint="give the checkpoint it was quantized from, or leave the weights' format to the source",
        )
        for tensor in mapped
        if tensor.target.rule.is_linear
        for source in tensor.sources
        if not source.is_plain
    ]


def expert_problems(mapped: Sequence[MappedTensor], weights: str) -> list[Problem]:
    """Return the layers of experts, for formats that TensorRT-LLM has no experts in."""
    return [
        Problem(
            f"TensorRT-LLM has no experts with {weights} weights",
            key=tensor.target.name,
            hint="use weights: none, int8-wo or fp8",
        )
        for tensor in mapped
        if tensor.target.rule.per_expert
    ]


def structure_problems(mapped: Sequence[MappedTensor], weights: str) -> list[Problem]:
    """Return what does not fit into the decoder layers of formats that quantize inside of their norms.

    There, each of the two norms is followed by linear layers and hands int8 or fp8 to them; heads have no norms.
    """
    hint = "use weights: none, int8-wo or fp8" + ", or smoothquant: qdq" * (weights == "int8-sq")
    owners = {
        local_name(tensor).rpartition(".")[0]: tensor
        for tensor in mapped
        if tensor.target.layer is not None and ("norm" in local_name(tensor) or tensor.target.rule.is_linear)
    }
    odd, lacking = misfits(name for name, tensor in owners.items() if not tensor.target.rule.per_expert)
    message = f"TensorRT-LLM's layers with {weights} weights have nothing of the kind"
    problems = [Problem(message, owners[name].target.name, hint) for name in odd]
    if lacking:
        message = f"layers with {weights} weights need {' and '.join(lacking)}, which the model has not"
        problems.append(Problem(message, hint=hint))
    return problems
