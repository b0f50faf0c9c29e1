"""Safetensors files: headers that are read and checked without touching the tensors, and a streaming writer.

Layout: 8 bytes header length (little endian), a JSON header padded with spaces to 8 bytes, then the tensors without
gaps. Tensors of wide types come first, so that each one is aligned to its own type.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.stand_ins import HEAD_BYTES, check_start
from trtkit.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

Array = npt.NDArray[Any]

CHUNK_BYTES = 1 << 20
"""Unit of streaming: stays in the L2 cache, which makes casts several times faster than 16 MiB does."""

_CODES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
}
_NAMES = {name: code for code, name in _CODES.items()}
_MAX_HEADER_BYTES = 100_000_000
_DOWNLOAD_AGAIN = "download the file again"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's name, data type (numpy's name for it) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class TensorInfo(TensorSpec):
    """A tensor in a file; ``offset`` is its first byte, counted from the start of the file."""

    path: Path
    offset: int

    def read(self) -> Array:
        """Return the tensor as a read-only view of the file."""
        if not self.nbytes:
            return np.empty(self.shape, numpy_dtype(self.dtype))
        raw = np.memmap(self.path, np.uint8, "r", self.offset, (self.nbytes,))
        return raw.view(numpy_dtype(self.dtype)).reshape(self.shape)

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Array]:
        """Yield the elements in order, flat, in pieces; each piece is valid until the next one is asked for."""
        buffer = bytearray(min(chunk_bytes, self.nbytes))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            left = self.nbytes
            while left:
                view = memoryview(buffer)[: min(left, len(buffer))]
                _read_exactly(file, view, self.path)
                left -= len(view)
                yield np.frombuffer(view, numpy_dtype(self.dtype))


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's data type of that name, ``ml_dtypes``' ones included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of one file by name, from its header alone.

    Raises:
        InputError: The file is not a whole safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(HEAD_BYTES)
            check_start(path, start, kind="safetensors")
            header_bytes = int.from_bytes(start[:8], "little")
            _check_header_length(path, header_bytes, size)
            file.seek(8)
            text = file.read(header_bytes)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    entries = _parse(path, text)
    data_start = 8 + header_bytes
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in entries.items()}
    _check_layout(path, tensors.values(), data_start, size)
    return tensors


def _check_header_length(path: Path, header_bytes: int, size: int) -> None:
    if 8 + header_bytes <= size and header_bytes <= _MAX_HEADER_BYTES and size >= 8:
        return
    what = f"its header should take {header_bytes:,} bytes and the file has {size:,}"
    raise InputError(f"cut off, or not a safetensors file: {what}", path=path, hint=_DOWNLOAD_AGAIN)


def _parse(path: Path, text: bytes) -> dict[str, Mapping[str, Any]]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            twice = sorted({key for key in entries if sum(key == other for other, _ in pairs) > 1})
            raise InputError(f"the header names twice: {', '.join(twice)}", path=path)
        return entries

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise InputError("the header is not JSON", path=path, hint=_DOWNLOAD_AGAIN) from error
    if not isinstance(header, dict):
        raise InputError("the header is not a JSON object", path=path, hint=_DOWNLOAD_AGAIN)
    header.pop("__metadata__", None)
    return header


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    try:
        code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the header entry of {name} is malformed", path=path) from error
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise InputError(f"the header entry of {name} is malformed", path=path)
    if not isinstance(code, str) or code not in _CODES:
        raise InputError(f"{name} has the data type {code!r}, which is not known", path=path)
    info = TensorInfo(name, _CODES[code], shape, path, data_start + begin)
    if end - begin != info.nbytes:
        message = f"{name} takes {end - begin:,} bytes where {info.dtype} {list(shape)} needs {info.nbytes:,}"
        raise InputError(message, path=path)
    return info


def _check_layout(path: Path, tensors: Iterable[TensorInfo], data_start: int, size: int) -> None:
    position = data_start
    for info in sorted(tensors, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != position:
            raise InputError(f"{info.name} does not follow the tensor before it", path=path)
        position += info.nbytes
    if position > size:
        message = f"cut off: the header describes {position:,} bytes and the file has {size:,}"
        raise InputError(message, path=path, hint=_DOWNLOAD_AGAIN)
    if position < size:
        raise InputError(f"{size - position:,} bytes follow the last tensor", path=path, hint=_DOWNLOAD_AGAIN)


def _read_exactly(file: Any, view: memoryview, path: Path) -> None:
    while view:
        count = file.readinto(view)
        if not count:
            raise InputError("the file became shorter while it was read", path=path)
        view = view[count:]


class SafetensorsWriter:
    """Writes one file front to back: the header is complete before the first tensor is.

    ::

        with SafetensorsWriter(path, specs) as writer:
            for spec in writer.order:
                writer.write(spec, chunks_of(spec))
    """

    def __init__(self, path: Path, specs: Iterable[TensorSpec]) -> None:
        self.order: Sequence[TensorSpec] = sorted(
            specs, key=lambda spec: (-numpy_dtype(spec.dtype).itemsize, spec.name)
        )
        self._path = path
        self._next = 0
        self._file: BinaryIO

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(spec.nbytes for spec in self.order)

    def __enter__(self) -> Self:
        """Create the file and write its header."""
        self._file = self._path.open("wb", buffering=0)
        self._file.write(_header(self.order))
        return self

    def write(self, spec: TensorSpec, chunks: Iterable[Array]) -> None:
        """Write the next tensor of the order.

        Raises:
            ValueError: It is another tensor's turn, or the chunks are not the tensor's size and type.
        """
        if self._next >= len(self.order) or spec != self.order[self._next]:
            raise ValueError(f"it is not the turn of {spec.name}")
        written = 0
        for chunk in chunks:
            if chunk.dtype != numpy_dtype(spec.dtype):
                raise ValueError(f"{spec.name} is {spec.dtype}, a chunk is {chunk.dtype}")
            data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
            while written_now := self._file.write(data):
                written += written_now
                data = data[written_now:]
        if written != spec.nbytes:
            raise ValueError(f"{spec.name} has {spec.nbytes} bytes, its chunks had {written}")
        self._next += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush to disk; a file with tensors missing is an error."""
        with self._file:
            if kind is None and self._next < len(self.order):
                raise ValueError(f"{len(self.order) - self._next} tensors were not written")
            os.fsync(self._file.fileno())


def _header(order: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in order:
        begin, end = end, end + spec.nbytes
        entries[spec.name] = {
            "dtype": _NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
