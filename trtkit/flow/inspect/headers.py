"""Headers of safetensors files, read as far as they go: what is damaged is named, the rest is counted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtkit.checkpoint.safetensors import CODES, read_header
from trtkit.errors import InputError, Problem
from trtkit.flow.inspect.finding import Amount

_MAX_HEADER_BYTES = 100_000_000


@dataclass
class Headers:
    """What several files hold together."""

    dtypes: dict[str, Amount] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By tensor name; of several ranks, the last one's."""
    problems: list[Problem] = field(default_factory=list)

    def count(self, name: str, dtype: str, shape: tuple[int, ...], size_bytes: int) -> None:
        """Add a tensor."""
        self.shapes[name] = shape
        self.dtypes[dtype] = self.dtypes.get(dtype, Amount()) + Amount(1, math.prod(shape), size_bytes)


def read_headers(paths: Iterable[Path]) -> Headers:
    """Return what the files hold; never raises for what is in them."""
    headers = Headers()
    for path in paths:
        try:
            headers.files[path.name] = path.stat().st_size
        except OSError as error:
            hint = "bring the file back, or what its link names"
            headers.problems.append(Problem(f"cannot be read: {error.strerror}", file=str(path), hint=hint))
            continue
        _read(path, headers)
    return headers


def _read(path: Path, headers: Headers) -> None:
    try:
        for info in read_header(path).values():
            headers.count(info.name, info.dtype, info.shape, info.nbytes)
    except InputError as error:
        headers.problems.append(Problem(error.message, file=str(path), hint=error.hint))
        for name, (dtype, shape, size_bytes) in _salvage(path).items():
            headers.count(name, CODES.get(dtype, dtype), shape, size_bytes)


def _salvage(path: Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Return what a header says whose file is cut off, or that has a data type of its own."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            content: Any = json.loads(file.read(size)) if size <= _MAX_HEADER_BYTES else {}
        content.pop("__metadata__", None)
        return {
            name: (str(entry["dtype"]), tuple(map(int, entry["shape"])), _span(entry["data_offsets"]))
            for name, entry in content.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _span(offsets: Any) -> int:
    begin, end = offsets
    return int(end) - int(begin)
