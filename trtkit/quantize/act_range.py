"""Saved activation ranges: what went through every linear layer while the model read samples.

A safetensors file with three float32 vectors for each linear layer of the Hugging Face model: ``{module}|x`` are the
largest magnitudes of each input channel, ``{module}|y`` of each output channel, ``{module}|w`` of each row of the
weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtkit.catalog.architectures.architecture import Arrange
from trtkit.checkpoint.blocks import row_order
from trtkit.checkpoint.condense import condense
from trtkit.checkpoint.expected import architecture_of
from trtkit.checkpoint.kernels import Floats, Kernels
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import TensorInfo, read_header
from trtkit.errors import ContractError, InputError, Problem
from trtkit.quantize.linear import Linear, block_amax

_INPUT, _OUTPUT, _WEIGHT = "x", "y", "w"
_NOTHING = 1e-30
_AGAIN = "record the ranges of this model again"
_CLOSE = 2.0**-6
"""How far recorded row maxima may be from the source's: rounding to bfloat16 and to float16 stays far below."""


@dataclass(frozen=True)
class ActRange:
    """An opened file."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    is_awaited: bool = False
    """Whether it is still to be recorded: recipes can check the model by it, and nothing can be read of it."""

    @classmethod
    def open(cls, path: Path) -> ActRange:
        """Read the names and shapes.

        Raises:
            InputError: It is no whole safetensors file.
        """
        return cls(path, read_header(path))

    @classmethod
    def awaited(cls, path: Path) -> ActRange:
        """Return ranges that a calibration will write there."""
        return cls(path, {}, is_awaited=True)

    def inputs(self, linears: Sequence[Linear]) -> Floats:
        """Return the largest magnitude of each input channel of layers that read the same input."""
        found = [self._read(linear, index, _INPUT) for linear in linears for index in _indices(linear)]
        largest: Floats = np.maximum.reduce(found)
        return largest

    def outputs(self, linear: Linear) -> Floats:
        """Return the largest magnitude of each output channel, in the order of the target's rows."""
        config, arrange = linear.layout.config, linear.tensor.target.rule.arrange
        found = []
        for index in _indices(linear):
            values = self._read(linear, index, _OUTPUT)
            order = row_order(len(values), arrange, config)
            found += [values] if order is None else [values[each.start : each.stop] for each in order]
        return np.concatenate(found)

    def check(self, linears: Sequence[Linear], *, outputs: bool = False) -> None:
        """Make sure that every layer has what will be asked for.

        Raises:
            ContractError: Ranges are missing, of another model, or no ranges; all of them are listed.
        """
        if self.is_awaited:
            return
        kinds = (_INPUT, _OUTPUT) if outputs else (_INPUT,)
        problems = [
            problem
            for linear in linears
            for index in _indices(linear)
            for kind in kinds
            for problem in self._problems(linear, index, kind)
        ]
        problems = problems or [problem for linear in _samples(linears) for problem in self._foreign(linear)]
        if problems:
            raise ContractError(condense(problems, file=str(self.path)))

    def _problems(self, linear: Linear, index: int, kind: str) -> Iterator[Problem]:
        name, size = self._name(linear, index, kind), _sizes(linear.tensor, index)[kind]
        info = self.tensors.get(name)
        if info is None:
            yield Problem("there is no range of this layer", name, _AGAIN)
        elif info.shape != (size,):
            message = f"the range has the shape {list(info.shape)}, the layer of the model needs {[size]}"
            yield Problem(message, name, "the ranges are of another model: " + _AGAIN)
        elif info.dtype not in ("float32", "float16", "bfloat16"):
            yield Problem(f"is {info.dtype}, ranges are float32", name, _AGAIN)
        else:
            values = self._read(linear, index, kind)
            if not np.isfinite(values).all():
                yield Problem(
                    "holds NaN or infinity: a sample, or the model in float16, overflowed", name, _AGAIN
                )
            elif (values < 0).any():
                yield Problem("holds negative values, which largest magnitudes cannot be", name, _AGAIN)
            elif values.max() <= _NOTHING:
                yield Problem(
                    "is all zeros: nothing went through the layer", name, "record with more samples"
                )

    def _foreign(self, linear: Linear) -> Iterator[Problem]:
        """Compare the recorded rows of the weight, where there are any, with the source's."""
        name = self._name(linear, 0, _WEIGHT)
        info, rows = self.tensors.get(name), _sizes(linear.tensor, 0)[_WEIGHT]
        if info is None or linear.tensor.target.rule.arrange is not Arrange.STACKED:
            return
        if info.shape != (rows,):
            yield Problem(f"has the shape {list(info.shape)}, the layer has {rows} rows", name, _AGAIN)
            return
        kernels = Kernels()
        found = np.concatenate(
            [block_amax(kernels, block, 1) for block in linear.blocks() if block.row < rows]
        )
        if not np.allclose(found[:rows], info.read().astype(np.float32), rtol=_CLOSE, atol=1e-6):
            message = "the largest weights of the rows are not those of the source"
            yield Problem(message, name, "the ranges are of another model: " + _AGAIN)

    def _read(self, linear: Linear, index: int, kind: str) -> Floats:
        name = self._name(linear, index, kind)
        if name not in self.tensors:
            raise InputError(f"there is no range {name}", path=self.path, hint=_AGAIN)
        return self.tensors[name].read().astype(np.float32)

    def _name(self, linear: Linear, index: int, kind: str) -> str:
        """Return the name in the file: modules keep a prefix that publishers may leave out."""
        module = linear.tensor.sources[index].name.removesuffix(".weight")
        prefix = architecture_of(linear.layout.config).optional_prefix
        plain, prefixed = f"{module}|{kind}", f"{prefix}{module}|{kind}"
        return prefixed if plain not in self.tensors and prefixed in self.tensors else plain


def _indices(linear: Linear) -> range:
    return range(len(linear.tensor.sources))


def _sizes(tensor: MappedTensor, index: int) -> dict[str, int]:
    out, width = tensor.sources[index].shape
    if tensor.target.rule.arrange is Arrange.TRANSPOSED:
        out, width = width, out
    return {_INPUT: width, _OUTPUT: out, _WEIGHT: out}


def _samples(linears: Sequence[Linear]) -> list[Linear]:
    """Return the smallest layers of the first and of the last decoder layer: enough to know a model by."""
    ends = {linears[0].tensor.target.layer, linears[-1].tensor.target.layer}
    return [
        min(
            (linear for linear in linears if linear.tensor.target.layer == layer),
            key=lambda linear: linear.tensor.target.shape[-2] * linear.tensor.target.shape[-1],
        )
        for layer in ends
    ]
