"""GGUF files, from their headers.

The library makes an object of every token, which takes ten seconds for a vocabulary of 128 256; here lists are skipped.
Layout: magic, version, counts, then keys with values, then the places of tensors, then the tensors, aligned.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtkit.checkpoint.gguf.file import part_paths
from trtkit.checkpoint.stand_ins import check_file
from trtkit.errors import InputError, Problem
from trtkit.flow.inspect.finding import Amount, Finding, Kind

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_SHORT = 1024
"""Elements of lists that are read: one for each layer; those for each token are longer."""
_ALIGNMENT = "general.alignment"
_FLOAT16_BYTES = 2
_DOWNLOAD_AGAIN = "download the file again"


def inspect_gguf(path: Path) -> Finding:
    """Read the header of a file, and of the others where a model is split."""
    try:
        paths = part_paths(path)
    except InputError as error:
        paths, problems = (path,), [Problem(error.message, file=error.path, hint=error.hint)]
    else:
        problems = []
    fields: dict[str, Any] = {}
    dtypes: dict[str, Amount] = {}
    for part in paths:
        try:
            header = Header.read(part)
        except InputError as error:
            problems.append(Problem(error.message, file=error.path, hint=error.hint))
            continue
        fields = {**header.fields, **fields}
        problems += header.problems
        for dtype, amount in header.dtypes.items():
            dtypes[dtype] = dtypes.get(dtype, Amount()) + amount
    matrices = {name: amount for name, amount in dtypes.items() if name != "F32"}
    main = max(matrices or dtypes, key=lambda name: dtypes[name].bytes, default=None)
    return Finding(
        Kind.GGUF,
        str(path),
        made_by=_text(fields.get("general.quantized_by")),
        architecture=_text(fields.get("general.architecture")),
        weights=main,
        ranks=1,
        parameters=sum(amount.elements for amount in dtypes.values()) or None,
        kv_bytes_per_token=_kv_bytes(fields),
        dtypes=dtypes,
        files={part.name: part.stat().st_size for part in paths},
        details={"name": fields.get("general.name"), "parts": len(paths)},
        notes=("KV bytes are for float16; llama.cpp chooses when it runs",),
        problems=tuple(problems),
    )


class Header:
    """Keys with single values, and how much there is of each type."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.fields: dict[str, Any] = {}
        self.dtypes: dict[str, Amount] = {}
        self.problems: list[Problem] = []
        self._data, self._at = data, 4
        version = self._take("I")
        if version not in {2, 3}:
            raise InputError(f"version {version} of GGUF, or of the other byte order", path=path)
        tensors, keys = self._take("Q"), self._take("Q")
        for _ in range(keys):
            name = self._string()
            self.fields[name] = self._value(self._take("I"))
        end = max((self._tensor() for _ in range(tensors)), default=0)
        alignment = self.fields.get(_ALIGNMENT, 32)
        needed = math.ceil(self._at / alignment) * alignment + end
        if needed > len(data):
            message = f"cut off: the header describes {needed:,} bytes and the file has {len(data):,}"
            self.problems.append(Problem(message, file=str(path), hint=_DOWNLOAD_AGAIN))

    @classmethod
    def read(cls, path: Path) -> Header:
        """Read the header of one file.

        Raises:
            InputError: It is none of a GGUF file, or ends too early.
        """
        check_file(path, kind="GGUF")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != b"GGUF":
                raise InputError("not a GGUF file", path=path, hint=_DOWNLOAD_AGAIN)
            try:
                return cls(path, data)
            except (
                struct.error,
                UnicodeDecodeError,
                ValueError,
                KeyError,
                TypeError,
                ArithmeticError,
            ) as error:
                message = f"the header is damaged or cut off ({error})"
                raise InputError(message, path=path, hint=_DOWNLOAD_AGAIN) from error

    def _take(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        start = self._skip_string()
        return self._data[start : self._at].decode()

    def _skip_string(self) -> int:
        size = self._take("Q")
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError(f"a text of {size:,} bytes goes beyond the end")
        return start

    def _value(self, kind: int) -> Any:
        """Return a value; a list is passed over, but for short ones of numbers."""
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._take(_SCALARS[kind])
        element, count = self._take("I"), self._take("Q")
        if element == _STRING:
            self._skip_strings(count)
        elif count <= _SHORT:
            return [self._take(_SCALARS[element]) for _ in range(count)]
        else:
            self._at += count * struct.calcsize("<" + _SCALARS[element])
        return None

    def _skip_strings(self, count: int) -> None:
        at, data, length = self._at, self._data, struct.Struct("<Q")
        for _ in range(count):
            at += 8 + length.unpack_from(data, at)[0]
        self._at = at

    def _tensor(self) -> int:
        """Count a tensor; return where it ends, counted from the first one's start."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        self._skip_string()
        shape = [self._take("Q") for _ in range(self._take("I"))]
        kind, offset = GGMLQuantizationType(self._take("I")), int(self._take("Q"))
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        elements = math.prod(shape)
        size = elements // block_elements * block_bytes
        self.dtypes[kind.name] = self.dtypes.get(kind.name, Amount()) + Amount(1, elements, size)
        return offset + int(size)


def _kv_bytes(fields: Mapping[str, Any]) -> int | None:
    """Return the bytes of one token over all layers; the number of KV heads may differ from layer to layer."""
    arch = fields.get("general.architecture")

    def get(name: str) -> Any:
        return fields.get(f"{arch}.{name}")

    layers, heads, width = get("block_count"), get("attention.head_count"), get("embedding_length")
    kv_heads = get("attention.head_count_kv") or heads
    per_layer = (
        kv_heads if isinstance(kv_heads, list) else [kv_heads] * (layers if isinstance(layers, int) else 0)
    )
    key, value = get("attention.key_length"), get("attention.value_length")
    if isinstance(heads, int) and heads and isinstance(width, int):
        key, value = key or width // heads, value or width // heads
    if not per_layer or not all(isinstance(each, int) for each in (*per_layer, key, value)):
        return None
    if get("attention.kv_lora_rank"):
        return None
    return int(sum(per_layer) * (key + value) * _FLOAT16_BYTES)


def _text(value: Any) -> str | None:
    return str(value) if value else None
