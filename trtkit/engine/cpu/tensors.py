"""A checkpoint's tensors, each with the check that no header can make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtkit.errors import StageError

Array = npt.NDArray[Any]
FLOATS = ("bfloat16", "float16", "float32")
_AGAIN = "convert the model again with `trtkit convert`"


class Checkpoint(Protocol):
    """An opened TensorRT-LLM checkpoint of one rank."""

    @property
    def config(self) -> Mapping[str, Any]:
        """``config.json``."""

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors."""

    def tensor(self, name: str) -> Array:
        """Return a tensor, memory-mapped if possible; bf16 as ``ml_dtypes.bfloat16``."""

    def __contains__(self, name: str) -> bool:
        """Tell whether a tensor of this name exists."""


class Tensors:
    """Reads tensors by name; raises :class:`StageError` on what is missing or cannot be meant."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all of them."""
        return self._checkpoint.names

    def read(self, name: str, *dtypes: str) -> Array:
        """Return a tensor of one of ``dtypes``, or of floats."""
        if name not in self:
            raise StageError(f"checkpoint has no tensor {name!r}", hint=_AGAIN)
        array, wanted = self._checkpoint.tensor(name), dtypes or FLOATS
        if array.dtype.name not in wanted:
            raise StageError(f"{name} is {array.dtype.name}, not {' or '.join(wanted)}", hint=_AGAIN)
        return array

    def vector(self, name: str, *sizes: int, positive: bool = True) -> npt.NDArray[np.float32]:
        """Return a tensor of as many elements as one of ``sizes``, all finite, as one axis of float32."""
        array: npt.NDArray[np.float32] = self.read(name).astype(np.float32).reshape(-1)
        if array.size not in sizes:
            wanted = " or ".join(map(str, sizes))
            raise StageError(f"{name} has {array.size} elements where {wanted} belong", hint=_AGAIN)
        if not np.isfinite(array).all() or (positive and not (array > 0).all()):
            kind = "finite numbers above 0" if positive else "finite numbers"
            raise StageError(f"{name} holds values that are no {kind}", hint=_AGAIN)
        return array

    def number(self, name: str) -> np.float32:
        """Return the one element, above 0, of a tensor."""
        return np.float32(self.vector(name, 1)[0])
