"""A checkpoint's tensors, each with the check that no header can make."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.safetensors import TensorInfo, numpy_dtype
from trtkit.errors import StageError

Array = npt.NDArray[Any]
FLOATS = ("bfloat16", "float16", "float32")
_COMPUTED = ("*embed_positions*", "*rotary_inv_freq*")
"""Tables that some versions of TensorRT-LLM's converter add, and that the graph computes."""
_AGAIN = "convert the model again with `trtkit convert`"


class Checkpoint(Protocol):
    """An opened TensorRT-LLM checkpoint of one rank."""

    @property
    def config(self) -> Mapping[str, Any]:
        """``config.json``."""

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors."""

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's data type, shape and place."""

    def block_of(self, module: str) -> Mapping[str, Any]:
        """Return the ``quantization`` block that holds for one layer."""

    def tensor(self, name: str) -> Array:
        """Return a tensor, memory-mapped if possible; bf16 as ``ml_dtypes.bfloat16``."""

    def __contains__(self, name: str) -> bool:
        """Tell whether a tensor of this name exists."""


class Tensors:
    """Reads tensors by name; raises :class:`StageError` on what is missing or cannot be meant."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def block_of(self, module: str) -> Mapping[str, Any]:
        """Return the ``quantization`` block that holds for one layer."""
        return self._checkpoint.block_of(module)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all of them."""
        return self._checkpoint.names

    def read(self, name: str, *dtypes: str) -> Array:
        """Return a tensor of one of ``dtypes``, or of floats."""
        self.info(name, *dtypes)
        return self._checkpoint.tensor(name)

    def info(self, name: str, *dtypes: str) -> TensorInfo:
        """Return what and where a tensor of one of ``dtypes``, or of floats, is; it counts as read."""
        if name not in self:
            raise StageError(f"checkpoint has no tensor {name!r}", hint=_AGAIN)
        self._read.add(name)
        info, wanted = self._checkpoint.info(name), dtypes or FLOATS
        if info.dtype not in wanted:
            raise StageError(f"{name} is {info.dtype}, not {' or '.join(wanted)}", hint=_AGAIN)
        return info

    def vector(
        self, name: str, *sizes: int, positive: bool = True, rounded_to: str = "float32"
    ) -> npt.NDArray[np.float32]:
        """Return a tensor of as many elements as one of ``sizes``, all finite, as one axis of float32."""
        stored = self.read(name).reshape(-1).astype(numpy_dtype(rounded_to))
        array: npt.NDArray[np.float32] = stored.astype(np.float32)
        if array.size not in sizes:
            wanted = " or ".join(map(str, sizes))
            raise StageError(f"{name} has {array.size} elements where {wanted} belong", hint=_AGAIN)
        if not np.isfinite(array).all() or (positive and not (array > 0).all()):
            kind = "finite numbers above 0" if positive else "finite numbers"
            raise StageError(f"{name} holds values that are no {kind}", hint=_AGAIN)
        return array

    def close(self) -> None:
        """Make sure that every tensor was read: one that was not would have changed the text."""
        left = [name for name in self.names if name not in self._read]
        left = [name for name in left if not any(fnmatchcase(name, pattern) for pattern in _COMPUTED)]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            message = f"nothing in the graph uses {left[0]}{more}: config.json does not say what they are for"
            raise StageError(message, hint=_AGAIN)

    def number(self, name: str) -> np.float32:
        """Return the one element, above 0, of a tensor."""
        return np.float32(self.vector(name, 1)[0])
