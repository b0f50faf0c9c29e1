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
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.json_object import NamedTwiceError, once
from trtkit.checkpoint.stand_ins import HEAD_BYTES, check_start
from trtkit.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

Array = npt.NDArray[Any]

CHUNK_BYTES = 2 << 20
"""Unit of streaming: about the size of an L2 cache, which makes casts several times faster than 16 MiB does."""

PANEL_BYTES = 8 << 20
"""Unit of transposing: every row is read once per panel, in pieces that should not become too small."""

CODES = {
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
"""The format's names of data types, to numpy's."""
_NAMES = {name: code for code, name in CODES.items()}
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
        flat = TensorInfo(self.name, self.dtype, (math.prod(self.shape),), self.path, self.offset)
        for block in flat.rows(chunk_bytes=chunk_bytes):
            yield block.reshape(-1)

    def rows(self, ranges: Iterable[range] | None = None, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Array]:
        """Yield the rows of ``ranges`` (all of them by default) in blocks of ``(rows, columns)``.

        All axes but the last one are rows; a vector is one column. A block is valid until the next one is asked for.
        """
        dtype = numpy_dtype(self.dtype)
        columns = self.shape[-1] if len(self.shape) > 1 else 1
        count = math.prod(self.shape) // columns if columns else 0
        row_bytes = columns * dtype.itemsize
        step = max(1, chunk_bytes // max(1, row_bytes))
        buffer = memoryview(bytearray(min(step, count) * row_bytes))
        with self.path.open("rb", buffering=0) as file:
            for wanted in (range(count),) if ranges is None else ranges:
                for start in range(wanted.start, wanted.stop, step):
                    view = buffer[: (min(start + step, wanted.stop) - start) * row_bytes]
                    _read_exactly(file, view, self.offset + start * row_bytes, self.path)
                    yield np.frombuffer(view, dtype).reshape(-1, columns)

    def panels(self, panel_bytes: int = PANEL_BYTES) -> Iterator[Array]:
        """Yield the rows of the transposed matrix in blocks of ``(columns, rows)``."""
        dtype, (count, columns) = numpy_dtype(self.dtype), self.shape
        step = max(1, panel_bytes // (count * dtype.itemsize))
        with self.path.open("rb", buffering=0) as file:
            for start in range(0, columns, step):
                panel = np.empty((count, min(step, columns - start)), dtype)
                for row, values in enumerate(panel.view(np.uint8)):
                    offset = self.offset + (row * columns + start) * dtype.itemsize
                    _read_exactly(file, values.data, offset, self.path)
                yield np.ascontiguousarray(panel.T)


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
        if not path.is_file():
            raise InputError("is not a file", path=path)  # a pipe would be waited for without end
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


def read_metadata(path: Path) -> dict[str, str]:
    """Return the texts that a file says about itself.

    Raises:
        InputError: The header is no JSON object.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(min(size, _MAX_HEADER_BYTES))
    try:
        found = json.loads(text).get("__metadata__", {})
        return {key: str(value) for key, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise InputError("the header is not a JSON object", path=path, hint=_DOWNLOAD_AGAIN) from error


def _check_header_length(path: Path, header_bytes: int, size: int) -> None:
    if 8 + header_bytes <= size and header_bytes <= _MAX_HEADER_BYTES and size >= 8:
        return
    what = f"its header should take {header_bytes:,} bytes and the file has {size:,}"
    raise InputError(f"cut off, or not a safetensors file: {what}", path=path, hint=_DOWNLOAD_AGAIN)


def _parse(path: Path, text: bytes) -> dict[str, Mapping[str, Any]]:
    try:
        header = json.loads(text, object_pairs_hook=once)
    except NamedTwiceError as error:
        raise InputError(f"the header {error}", path=path) from error
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
    if not isinstance(code, str) or code not in CODES:
        raise InputError(f"{name} has the data type {code!r}, which is not known", path=path)
    info = TensorInfo(name, CODES[code], shape, path, data_start + begin)
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


def _read_exactly(file: BinaryIO | FileIO, view: memoryview, offset: int, path: Path) -> None:
    while view:
        count = os.preadv(file.fileno(), [view], offset)
        if not count:
            raise InputError("the file became shorter while it was read", path=path)
        view, offset = view[count:], offset + count


class SafetensorsWriter:
    """Writes one file whose header is complete before the first tensor is; pieces may come in any order.

    ::

        with SafetensorsWriter(path, specs) as writer:
            for spec in writer.order:
                writer.write(spec, chunks_of(spec))
    """

    def __init__(
        self, path: Path, specs: Iterable[TensorSpec], metadata: Mapping[str, str] | None = None
    ) -> None:
        self.order: Sequence[TensorSpec] = sorted(
            specs, key=lambda spec: (-numpy_dtype(spec.dtype).itemsize, spec.name)
        )
        self._path = path
        self._metadata = {"format": "pt", **(metadata or {})}
        self._missing = {spec.name: spec.nbytes for spec in self.order}
        self._offsets: dict[str, int] = {}
        self._file: FileIO

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(spec.nbytes for spec in self.order)

    def __enter__(self) -> Self:
        """Create the file at its full size and write its header."""
        header = _header(self.order, self._metadata)
        position = len(header)
        for spec in self.order:
            self._offsets[spec.name] = position
            position += spec.nbytes
        self._file = FileIO(self._path, "wb")
        # Unlike truncate it takes the space at once: a full disk shows here, and writing is a third faster.
        os.posix_fallocate(self._file.fileno(), 0, position)
        self._write(0, memoryview(header))
        return self

    def write(self, spec: TensorSpec, chunks: Iterable[Array]) -> None:
        """Write a tensor front to back.

        Raises:
            ValueError: The chunks are not the tensor's size and type.
        """
        position = 0
        for chunk in chunks:
            if chunk.dtype != numpy_dtype(spec.dtype):
                raise ValueError(f"{spec.name} is {spec.dtype}, a chunk is {chunk.dtype}")
            position += self.put(spec.name, position, chunk)
        if self._missing[spec.name]:
            raise ValueError(f"{spec.name} lacks {self._missing[spec.name]} of its {spec.nbytes} bytes")

    def put(self, name: str, position: int, values: Array) -> int:
        """Write elements at a byte position inside of a tensor; return how many bytes that were.

        Raises:
            ValueError: More is written than the tensor holds.
        """
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        self._settle(name, len(data))
        self._write(self._offsets[name] + position, data)
        return len(data)

    def leave_zero(self, name: str, size_bytes: int) -> None:
        """Count bytes as written that stay zero, as the file was made."""
        self._settle(name, size_bytes)

    def _settle(self, name: str, size_bytes: int) -> None:
        self._missing[name] -= size_bytes
        if self._missing[name] < 0:
            raise ValueError(f"{name} got {-self._missing[name]} bytes too many")

    def _write(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[count:], offset + count

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush to disk; a file with a tensor missing is an error."""
        with self._file:
            lacking = [name for name, size_bytes in self._missing.items() if size_bytes]
            if kind is None and lacking:
                raise ValueError(f"not wholly written: {', '.join(lacking[:5])}")
            os.fsync(self._file.fileno())


def _header(order: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
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
