"""GGUF files as they are: metadata, and where the bytes of each tensor lie, in one file or split among several."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checkpoint.safetensors import TensorInfo
from trtkit.checkpoint.stand_ins import check_file
from trtkit.errors import EnvironmentLacks, InputError

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_OF_PART = ("split.", "GGUF.")
"""Starts of the fields that each part has for itself; ``GGUF.`` is the reader's name for the header's."""
_DOWNLOAD_AGAIN = "download the file again"
USE_FOLDER = "use the model's Hugging Face folder instead"


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in a file, of some quantized or plain type."""

    name: str
    kind: str
    """Its type as ggml names it: ``Q4_K``, ``F32``, ..."""
    shape: tuple[int, ...]
    """Outermost dimension first, unlike in the file."""
    path: Path
    offset: int

    @property
    def raw(self) -> TensorInfo:
        """Return its bytes as rows; a vector has one element in a row."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        shape = self.shape if len(self.shape) > 1 else (*self.shape, 1)
        block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]]
        row_bytes = shape[-1] // block_elements * block_bytes
        return TensorInfo(self.name, "uint8", (math.prod(shape[:-1]), row_bytes), self.path, self.offset)


@dataclass(frozen=True)
class GgufFile:
    """Everything in a model but the weights themselves."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name of the architecture, which all its settings begin with."""
        return str(self.fields.get("general.architecture"))

    def get(self, key: str) -> Any:
        """Return a setting of the architecture, or None."""
        return self.fields.get(f"{self.architecture}.{key}")

    def count(self, key: str) -> int:
        """Return a setting that others are computed from.

        Raises:
            InputError: It is missing, or not a positive whole number.
        """
        value = self.get(key)
        if type(value) is not int or value < 1:
            name = f"{self.architecture}.{key}"
            raise InputError(f"{name} must be a positive whole number, is {value!r}", path=self.path)
        return value


def part_paths(path: Path) -> tuple[Path, ...]:
    """Return the files that a model is split among, in order; the file itself where it is whole.

    Raises:
        InputError: Some of them are missing.
    """
    name = _PART.fullmatch(path.name)
    if name is None:
        return (path,)
    numbers = range(1, int(name["count"]) + 1)
    parts = tuple(path.with_name(f"{name['stem']}-{i:05}-of-{name['count']}.gguf") for i in numbers)
    missing = [part.name for part in parts if not part.is_file()]
    if missing or path not in parts:
        message = f"{len(missing)} of {len(parts)} parts are missing: {', '.join(missing)}"
        raise InputError(message, path=path, hint="download all parts into the same folder")
    return parts


def open_gguf(path: Path) -> GgufFile:
    """Read metadata and the places of tensors.

    Raises:
        InputError: The file is damaged, or not all of the model.
        EnvironmentLacks: The ``gguf`` library is not installed.
    """
    parts = [_open_one(part) for part in part_paths(path)]
    for number, part in enumerate(parts):
        _check_split(part, number, len(parts))
        _check_same(part, parts[0])
    tensors = _merge(parts)
    promised = parts[0].fields.get("split.tensors.count", len(tensors))
    if promised != len(tensors):
        message = f"the parts hold {len(tensors)} tensors, the first one promises {promised}"
        raise InputError(message, path=path, hint="download all parts again")
    return GgufFile(path, parts[0].fields, tensors)


def _check_split(part: GgufFile, number: int, count: int) -> None:
    found = (part.fields.get("split.no", 0), part.fields.get("split.count", 1) or 1)
    if found != (number, count):
        said = f"part {found[0] + 1} of {found[1]}"
        message = f"its metadata calls it {said}, its name part {number + 1} of {count}"
        hint = "give the parts their names back: NAME-00001-of-00003.gguf"
        raise InputError(message, path=part.path, hint=hint)


def _check_same(part: GgufFile, first: GgufFile) -> None:
    """Refuse settings of a later part that the first one, which llama.cpp goes by, does not have."""
    own = [
        name
        for name, value in part.fields.items()
        if not name.startswith(_OF_PART) and (name not in first.fields or first.fields[name] != value)
    ]
    if own:
        message = f"differs from the first part in {', '.join(own)}"
        raise InputError(message, path=part.path, hint="download all parts again, from one place")


def _merge(parts: Iterable[GgufFile]) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for part in parts:
        twice = sorted(tensors.keys() & part.tensors.keys())
        if twice:
            raise InputError(f"also in a part before this one: {', '.join(twice)}", path=part.path)
        tensors.update(part.tensors)
    return tensors


def _open_one(path: Path) -> GgufFile:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        hint = "pip install 'trtkit[gguf]'"
        raise EnvironmentLacks("reading GGUF files needs the gguf library", hint=hint) from error
    check_file(path, kind="GGUF")
    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: _tensor(tensor, path) for tensor in reader.tensors}
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except Exception as error:  # the library checks little: damage shows as whatever it happens to break
        raise InputError(f"not a whole GGUF file ({error})", path=path, hint=_DOWNLOAD_AGAIN) from error
    if reader.byte_order == "S":
        hint = "convert it with gguf's own gguf_convert_endian.py"
        raise InputError("the file is of the other byte order", path=path, hint=hint)
    return GgufFile(path, fields, tensors)


def _tensor(tensor: Any, path: Path) -> GgufTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return GgufTensor(tensor.name, tensor.tensor_type.name, shape, path, int(tensor.data_offset))
