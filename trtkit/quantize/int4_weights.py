"""INT4 weights in a file of ranges, where ``trtkit calibrate --for`` puts them.

``{module}|codes`` are ``(out, in / 2)``, two neighbouring columns to a byte, the even one in the low half;
``{module}|scale`` ``(out, groups)``; and from AWQ ``{module}|prequant`` ``(in,)``. The weight is ``code * scale *
prequant``; rows are those of the module, ``(out, in)`` for Conv1D too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtkit.catalog.architectures.architecture import Arrange
from trtkit.checkpoint.blocks import row_order
from trtkit.checkpoint.expected import architecture_of
from trtkit.checkpoint.kernels import Floats
from trtkit.checkpoint.safetensors import CHUNK_BYTES, TensorInfo, read_metadata
from trtkit.errors import InputError, Problem
from trtkit.quantize.act_range import METADATA, ActRange
from trtkit.quantize.linear import Linear

GPTQ = "int4-gptq"
PURPOSES = {
    "int4-awq": ("int4-awq", "w4a8-awq"),
    "w4a8-awq": ("w4a8-awq", "int4-awq"),
    GPTQ: (GPTQ,),
}
"""Weights to what calibrations for them are called; the first one is made for them."""
_AGAIN = "calibrate again"
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Int4Weights:
    """The opened file."""

    ranges: ActRange
    weights: str
    group_size: int
    """Input columns that share a scale."""
    weights_sha256: str
    """Digest of what the codes were made of."""

    @classmethod
    def open(cls, ranges: ActRange, weights: str) -> Int4Weights:
        """Read what the file says of itself.

        Raises:
            InputError: It was not made for these weights.
        """
        wanted, path = PURPOSES[weights], ranges.path
        if ranges.is_awaited:
            return cls(ranges, weights, 64, "")
        hint = f"make it with `trtkit calibrate SOURCE --for {wanted[0]} -o FILE`"
        try:
            told = json.loads(read_metadata(path).get(METADATA, "{}"))
            made_for, group, digest = (told.get(key) for key in ("for", "group_size", "weights_sha256"))
        except (ValueError, AttributeError) as error:
            message = "what the file says of itself is no JSON object"
            raise InputError(message, path=path, hint=hint) from error
        if made_for not in wanted or not isinstance(digest, str):
            message = f"was made for {made_for or 'ranges'}, and has no {weights} weights"
            raise InputError(message, path=path, hint=hint)
        if group not in (64, 128) or (weights == "w4a8-awq" and group != 128):
            message = f"has groups of {group} columns, which {weights} engines do not"
            raise InputError(message, path=path, hint=f"{hint} --group-size 128")
        return cls(ranges, weights, group, digest)

    def problems(self, linear: Linear) -> Iterator[Problem]:
        """Yield what is missing of a layer, has another shape, or is nothing to multiply with."""
        factors: list[TensorInfo] = []
        for index in range(len(linear.tensor.sources)):
            for kind, dtype, shape in self._wanted(linear, index):
                name = self._name(linear, index, kind)
                info, file = self.ranges.tensors.get(name), str(self.ranges.path)
                if info is None:
                    yield Problem("there is no such tensor", name, _AGAIN, file)
                elif (info.dtype, info.shape) != (dtype, shape):
                    message = f"is {info.dtype} {list(info.shape)}, the layer needs {dtype} {list(shape)}"
                    yield Problem(message, name, _AGAIN, file)
                elif kind != "codes" and not _is_factor(info.read()):
                    yield Problem("holds zero, negative, NaN or infinite values", name, _AGAIN, file)
                elif kind == "prequant":
                    factors.append(info)
        if any(not np.array_equal(info.read(), factors[0].read()) for info in factors[1:]):
            yield Problem("differs between modules that share an input", factors[0].name, _AGAIN)

    def codes(self, linear: Linear) -> Iterator[tuple[int, Codes]]:
        """Yield the codes in pairs of rows, in the order of the engine's, and the first row's number."""
        row = 0
        for info in self._infos(linear, "codes"):
            step = max(2, CHUNK_BYTES // info.shape[1] // 2 * 2)
            for packed in info.rows(_order(info, linear), step * info.shape[1]):
                yield row, _unpack(packed)
                row += len(packed)

    def scales(self, linear: Linear) -> Floats:
        """Return ``(out, groups)`` in the order of the engine's rows."""
        found = [(info.read(), _order(info, linear)) for info in self._infos(linear, "scale")]
        return np.concatenate([values[part.start : part.stop] for values, order in found for part in order])

    def prequant(self, linear: Linear) -> Floats:
        """Return what the input is multiplied with: ones for GPTQ."""
        if self.weights == GPTQ:
            return np.ones(linear.tensor.target.shape[-1], np.float32)
        return self._infos(linear, "prequant")[0].read().astype(np.float32)

    def _wanted(self, linear: Linear, index: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        width = linear.tensor.target.shape[-1]
        transposed = linear.tensor.target.rule.arrange is Arrange.TRANSPOSED
        out = linear.tensor.sources[index].shape[1 if transposed else 0]
        yield "codes", "uint8", (out, width // 2)
        yield "scale", "float32", (out, width // self.group_size)
        if self.weights != GPTQ:
            yield "prequant", "float32", (width,)

    def _infos(self, linear: Linear, kind: str) -> Sequence[TensorInfo]:
        count = len(linear.tensor.sources)
        return [self.ranges.tensors[self._name(linear, index, kind)] for index in range(count)]

    def _name(self, linear: Linear, index: int, kind: str) -> str:
        """Return the name in the file: modules keep a prefix that publishers may leave out."""
        plain = f"{linear.tensor.sources[index].name.removesuffix('.weight')}|{kind}"
        prefixed = architecture_of(linear.layout.config).optional_prefix + plain
        return prefixed if plain not in self.ranges.tensors and prefixed in self.ranges.tensors else plain


def _order(info: TensorInfo, linear: Linear) -> list[range]:
    """Return the rows of a module's tensor in the order of the engine's."""
    order = row_order(info.shape[0], linear.tensor.target.rule.arrange, linear.layout.config)
    return [range(info.shape[0])] if order is None else order


def _unpack(packed: npt.NDArray[np.uint8]) -> Codes:
    pairs = packed.view(np.int8)
    codes = np.empty((len(pairs), 2 * pairs.shape[1]), np.int8)
    # Arithmetic shifts spread the sign of each half.
    np.right_shift(pairs << 4, 4, out=codes[:, 0::2])
    np.right_shift(pairs, 4, out=codes[:, 1::2])
    return codes


def _is_factor(values: Floats) -> bool:
    return bool(np.isfinite(values).all() and (values > 0).all())
