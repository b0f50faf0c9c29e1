"""Saved activation ranges: what went through every linear layer while the model read samples.

A safetensors file with three float32 vectors for each linear layer of the Hugging Face model: ``{module}|x`` are the
largest magnitudes of each input channel, ``{module}|y`` of each output channel, ``{module}|w`` of each row of the
weight. ``{layer}.k_cache|y`` and ``{layer}.v_cache|y``, where they are, are of K as it is rotated and of V, channel by
channel of every KV head: what a cache keeps; ``{layer}.kv_cache|h`` is the histogram of both (see ``histogram``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtkit.catalog.architectures.architecture import Arrange, When
from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.blocks import row_order
from trtkit.checkpoint.condense import condense
from trtkit.checkpoint.expected import architecture_of
from trtkit.checkpoint.kernels import Floats
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array, TensorInfo, numpy_dtype, read_header, read_metadata
from trtkit.errors import ContractError, InputError, Problem
from trtkit.plan.layers import HEAD
from trtkit.quantize.digest import EXCERPT, NUMERICS, excerpt_digest, numerics
from trtkit.quantize.histogram import BINS
from trtkit.quantize.linear import Linear
from trtkit.quantize.sharing import sharing_input

METADATA = "trtkit"
"""Key of the texts in the file's header that holds what it says of itself, as JSON."""
_INPUT, _OUTPUT, _WEIGHT = "x", "y", "w"
_CACHES, _HISTOGRAM = ("k_cache|y", "v_cache|y"), "kv_cache|h"
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
_NOTHING = 1e-30
_FLOAT16_MAX = float(np.finfo(np.float16).max)
_SAMPLE = 1 << 17
"""Elements of each weight that are compared: 32 rows of 4096."""
_AGAIN = "record the ranges of this model again"
_WITHOUT_INPUTS = "leave the layer plain (exclude), or use formats that need no ranges: int8-wo, fp8-rowwise"
_WITHOUT_OUTPUTS = "use kv_cache: auto, and no smoothquant: per-channel or per-tensor"
"""Ways out for layers that are dead; the largest outputs are what the scales of caches and static SmoothQuant need."""
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

    @property
    def said(self) -> Mapping[str, Any]:
        """What the file says of itself; nothing where another tool has made it."""
        try:
            told = json.loads(read_metadata(self.path).get(METADATA, "{}"))
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}

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

    def reaches(self, linear: Linear) -> tuple[float, float] | None:
        """Return the largest output of a layer and the largest weight; None where one was not recorded."""
        names = [
            [self._name(linear, index, kind) for index in _indices(linear)] for kind in (_OUTPUT, _WEIGHT)
        ]
        if any(name not in self.tensors for each in names for name in each):
            return None
        output, weight = (max(float(self.tensors[name].read().max()) for name in each) for each in names)
        return output, weight

    def cached(self, linear: Linear) -> Floats | None:
        """Return the largest magnitudes of K as it is rotated, and of V; None where they were not recorded."""
        names = [self._cache_name(linear, name) for name in _CACHES]
        if any(name not in self.tensors for name in names):
            return None
        return np.concatenate([self.tensors[name].read().astype(np.float32) for name in names])

    def histogram(self, linear: Linear) -> Floats:
        """Return how often K and V have which magnitude."""
        counts: Floats = self.tensors[self._cache_name(linear, _HISTOGRAM)].read().astype(np.float32)
        return counts

    def check_cached(self, linears: Sequence[Linear], *, extents: bool, histograms: bool) -> None:
        """Make sure that what is recorded of caches is of this model, and that what is required of it is there.

        Raises:
            ContractError: It is not; all problems are listed.
        """
        if self.is_awaited:
            return
        problems = [
            problem
            for linear in linears
            for name, size, required in (
                *((name, _cache_size(linear), extents) for name in _CACHES),
                (_HISTOGRAM, BINS, histograms),
            )
            if required or self._cache_name(linear, name) in self.tensors
            for problem in self._cache_problems(linear, name, size)
        ]
        if problems:
            raise ContractError(condense(problems, file=str(self.path)))

    def check(
        self, linears: Sequence[Linear], mapped: Sequence[MappedTensor], *, outputs: bool = False
    ) -> None:
        """Make sure that every layer has what will be asked for, and that the ranges are of this model.

        Raises:
            ContractError: Ranges are missing, of another model, or no ranges; all of them are listed.
        """
        if self.is_awaited:
            return
        kinds = (_INPUT, _OUTPUT) if outputs else (_INPUT,)
        if any(name.endswith(f"|{_WEIGHT}") for name in self.tensors):
            kinds = (*kinds, _WEIGHT)
        problems = [
            problem
            for linear in linears
            for index in _indices(linear)
            for kind in kinds
            for problem in self._problems(linear, index, kind)
        ]
        problems = problems or [
            *self._surplus(linears),
            *self._uneven(linears),
            *self._foreign(linears, kinds),
            *self._other_model(linears[0].layout.config, mapped),
        ]
        if problems:
            raise ContractError(condense(problems, file=str(self.path)))

    def _problems(self, linear: Linear, index: int, kind: str) -> Iterator[Problem]:
        size = _sizes(linear.tensor, index)[kind]
        return self._tensor_problems(self._name(linear, index, kind), size, kind, linear.layout.dtype)

    def _tensor_problems(self, name: str, size: int, kind: str, dtype: str) -> Iterator[Problem]:
        info = self.tensors.get(name)
        if info is None:
            yield Problem("there is no range of this layer", name, _AGAIN)
        elif info.shape != (size,):
            message = f"the range has the shape {list(info.shape)}, the layer of the model needs {[size]}"
            yield Problem(message, name, "the ranges are of another model: " + _AGAIN)
        elif info.dtype not in ("float32", "float16", "bfloat16"):
            yield Problem(f"is {info.dtype}, ranges are float32", name, _AGAIN)
        else:
            yield from _value_problems(info.read().astype(np.float32), name, kind, dtype)

    def _surplus(self, linears: Sequence[Linear]) -> Iterator[Problem]:
        """Yield ranges of layers that the model does not have."""
        layers = linears[0].layout.config.num_layers
        for name in self.tensors:
            number = _LAYER.search(name)
            if number and int(number[0]) >= layers:
                message = f"the model has {layers} layers, and the range is of another one"
                yield Problem(message, name, "the ranges are of another model: " + _AGAIN)

    def _uneven(self, linears: Sequence[Linear]) -> Iterator[Problem]:
        """Yield inputs that are not the same as another layer's that reads the same."""
        for group in sharing_input(linears):
            if group[0].tensor.target.rule.per_expert:
                continue  # each expert has tokens of its own
            names = [self._name(linear, index, _INPUT) for linear in group for index in _indices(linear)]
            first = self.tensors[names[0]].read().astype(np.float32)
            for name in names[1:]:
                if not np.allclose(self.tensors[name].read().astype(np.float32), first, rtol=_CLOSE, atol=0):
                    yield Problem(f"differs from {names[0]}, and both layers read the same", name, _AGAIN)

    def _foreign(self, linears: Sequence[Linear], kinds: Sequence[str]) -> Iterator[Problem]:
        """Yield recorded rows of weights, where there are any, that are not the source's; some of each are compared."""
        if _WEIGHT not in kinds:
            return
        for linear in linears:
            for index in _indices(linear):
                rows, found = _sampled_rows(linear, index)
                recorded = self._read(linear, index, _WEIGHT)[rows]
                # What is not finite in the source is told when it is read.
                if not np.isclose(found, recorded, rtol=_CLOSE, atol=1e-6)[np.isfinite(found)].all():
                    message = "the largest weights of the rows are not those of the source"
                    name = self._name(linear, index, _WEIGHT)
                    yield Problem(message, name, "the ranges are of another model: " + _AGAIN)

    def _other_model(self, config: ModelConfig, mapped: Sequence[MappedTensor]) -> Iterator[Problem]:
        """Yield what the file says of its model that is not so of the source."""
        hint = "the ranges are of another model: " + _AGAIN
        told = self.said.get(NUMERICS)
        if isinstance(told, dict):
            found = numerics(config)
            for key in sorted(told.keys() | found.keys()):
                if (was := told.get(key)) != (now := found.get(key)):
                    yield Problem(f"the model's {key} was {was}, and the source's is {now}", NUMERICS, hint)
        told = self.said.get(EXCERPT)
        if isinstance(told, str) and told != (digest := excerpt_digest(mapped)):
            message = f"norms, biases, embeddings or weights were others: {told[:12]}, the source's are {digest[:12]}"
            yield Problem(message, EXCERPT, hint)

    def _read(self, linear: Linear, index: int, kind: str) -> Floats:
        name = self._name(linear, index, kind)
        if name not in self.tensors:
            raise InputError(f"there is no range {name}", path=self.path, hint=_AGAIN)
        return self.tensors[name].read().astype(np.float32)

    def _name(self, linear: Linear, index: int, kind: str) -> str:
        """Return the name in the file: modules keep a prefix that publishers may leave out."""
        is_tied = linear.tensor.target.rule.when is When.TIED
        module = HEAD if is_tied else linear.tensor.sources[index].name.removesuffix(".weight")
        return self._prefixed(f"{module}|{kind}", linear)

    def _cache_name(self, linear: Linear, name: str) -> str:
        source = linear.tensor.sources[0].name
        number = _LAYER.search(source)
        assert number is not None  # noqa: S101 - projections are in layers
        return self._prefixed(f"{source[: number.end()]}.{name}", linear)

    def _cache_problems(self, linear: Linear, name: str, size: int) -> Iterator[Problem]:
        kind = _OUTPUT if name in _CACHES else name[-1]
        return self._tensor_problems(self._cache_name(linear, name), size, kind, linear.layout.dtype)

    def _prefixed(self, plain: str, linear: Linear) -> str:
        prefixed = architecture_of(linear.layout.config).optional_prefix + plain
        return prefixed if plain not in self.tensors and prefixed in self.tensors else plain


def _indices(linear: Linear) -> range:
    return range(len(linear.tensor.sources))


def _cache_size(linear: Linear) -> int:
    return linear.layout.config.num_kv_heads * linear.layout.config.head_size


def _sizes(tensor: MappedTensor, index: int) -> dict[str, int]:
    out, width = tensor.sources[index].shape
    if tensor.target.rule.arrange is Arrange.TRANSPOSED:
        out, width = width, out
    return {_INPUT: width, _OUTPUT: out, _WEIGHT: out}


def _value_problems(values: Floats, name: str, kind: str, dtype: str) -> Iterator[Problem]:
    if not np.isfinite(values).all():
        yield Problem("holds NaN or infinity: a sample, or the model in float16, overflowed", name, _AGAIN)
    elif (values < 0).any():
        yield Problem("holds negative values, which largest magnitudes cannot be", name, _AGAIN)
    elif kind == _WEIGHT:
        return
    elif values.max() <= _NOTHING:
        way_out = _WITHOUT_INPUTS if kind == _INPUT else _WITHOUT_OUTPUTS
        hint = f"{way_out}; where no weights in it or before it are zeros, record with more samples"
        yield Problem("is all zeros: nothing went through the layer", name, hint)
    elif kind != _HISTOGRAM[-1] and dtype == "float16" and values.max() > _FLOAT16_MAX:
        message = f"reaches {values.max():g}, and activations in float16 end at {_FLOAT16_MAX:g}"
        yield Problem(message, name, "convert to bfloat16, or " + _AGAIN)


def _sampled_rows(linear: Linear, index: int) -> tuple[slice, Floats]:
    """Return some rows of a weight, all of them where it is small, and their largest magnitudes."""
    source = linear.tensor.plain[index]
    if linear.tensor.target.rule.arrange is Arrange.TRANSPOSED:
        found = _magnitudes(next(source.panels()))
        return slice(len(found)), found
    count, columns = source.shape
    step = math.ceil(count * columns / _SAMPLE)
    ranges = (range(row, row + 1) for row in range(0, count, step))
    blocks = source.rows(ranges, chunk_bytes=columns * numpy_dtype(source.dtype).itemsize)
    return slice(None, None, step), np.concatenate([_magnitudes(block) for block in blocks])


def _magnitudes(rows: Array) -> Floats:
    largest: Floats = np.abs(rows.astype(np.float32)).max(axis=1)
    return largest
