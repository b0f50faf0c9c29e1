"""A graph as plain data: nodes, constants, and how the bytes of large constants come about."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.cast import cast
from trtkit.checkpoint.safetensors import Array, numpy_dtype

Value = str
"""Name of a node's output, of an input or of a constant."""
Attribute = int | float | str | Sequence[int]
Pieces = Iterator[tuple[int, Array]]
"""Numbers of tensors with the values that follow those before."""

_INLINE_BYTES = 1024
"""What is no larger stands in the model file itself, where tools can read it."""


@dataclass(frozen=True)
class Tensor:
    """An input, an output or a constant; dimensions that are texts may have any size."""

    name: Value
    dtype: str
    """numpy's or ``ml_dtypes``' name; of ``int4`` two values take a byte, the first one low."""
    shape: tuple[int | str, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes of a constant."""
        count = math.prod(int(size) for size in self.shape)
        return (count + 1) // 2 if self.dtype == "int4" else count * numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Node:
    """One operation."""

    op: str
    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True)
class Job:
    """Constants that are read and made while they are written."""

    tensors: tuple[Tensor, ...]
    run: Callable[[], Pieces]


@dataclass
class Graph:
    """What is built up to be written."""

    dtype: str
    """Of activations."""
    source: Path
    """Where constants come from, for errors."""
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[Value, tuple[Tensor, Array]] = field(default_factory=dict)
    """Small ones, with their values."""
    jobs: list[Job] = field(default_factory=list)
    _known: dict[tuple[str, tuple[int, ...], bytes], Value] = field(default_factory=dict)

    def input(self, name: str, dtype: str, *shape: int | str) -> Value:
        """Add an input."""
        self.inputs.append(Tensor(name, dtype, shape))
        return name

    def output(self, value: Value, dtype: str, *shape: int | str) -> None:
        """Make a value an output."""
        self.outputs.append(Tensor(value, dtype, shape))

    def node(self, op: str, *inputs: Value, name: str = "", **attributes: Attribute) -> Value:
        """Add an operation and return its output, which has the operation's name."""
        return self.nodes_of(op, inputs, [name or f"{op}_{len(self.nodes)}"], **attributes)[0]

    def nodes_of(
        self, op: str, inputs: Sequence[Value], outputs: Sequence[Value], **attributes: Attribute
    ) -> tuple[Value, ...]:
        """Add an operation with several outputs; it has the name of the first one."""
        self.nodes.append(Node(op, outputs[0], tuple(inputs), tuple(outputs), attributes))
        return tuple(outputs)

    def ints(self, *values: int) -> Value:
        """Return a vector of int64."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> Value:
        """Return one number of the activations' type."""
        return self.vector(np.array(value, np.float32))

    def vector(self, values: npt.NDArray[np.float32], name: str = "") -> Value:
        """Return values in the activations' type.

        Raises:
            InputError: One is outside of its range.
        """
        return self.constant(cast(values, self.dtype, name=name or "a factor", path=self.source), name)

    def constant(self, values: Array, name: str = "") -> Value:
        """Return a constant; without a name of its own it is shared by all who ask for the same."""
        if not name:
            key = (values.dtype.name, values.shape, values.tobytes())
            if key in self._known:
                return self._known[key]
            name = self._known[key] = f"constant_{len(self._known)}"
        tensor = Tensor(name, values.dtype.name, values.shape)
        if tensor.nbytes <= _INLINE_BYTES:
            self.constants[name] = (tensor, values)
        else:
            self.streamed(lambda: iter([(0, values)]), tensor)
        return name

    def streamed(self, run: Callable[[], Pieces], *tensors: Tensor) -> Value:
        """Add constants that are made while they are written; return the first one."""
        self.jobs.append(Job(tensors, run))
        return tensors[0].name
