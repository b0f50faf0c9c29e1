"""Texts to calibrate with: the built-in ones, or local files. Nothing is ever fetched."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checkpoint.json_object import NamedTwiceError, once
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.quantize.calibrate import texts

_PARQUET = b"PAR1"
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zX": "xz", b"PK\x03\x04": "zip"}
_PART_CHARS = 1 << 18
"""Of a longer text each such part counts as one, so that a file of any size takes the same memory."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SUFFIXES = (".jsonl", ".txt", ".parquet")
_KINDS = ", ".join(_SUFFIXES)


@dataclass(frozen=True)
class Record:
    """One text, and where it is from."""

    text: str
    origin: str


@dataclass(frozen=True)
class Data:
    """What to read samples from."""

    path: Path | None = None
    """File or folder; None for the built-in text."""
    column: str = "text"
    """Field of JSON lines and of Parquet files."""

    def describe(self) -> str:
        """Return what it is, for the record."""
        return texts.CALIBRATION if self.path is None else str(self.path)

    def records(self) -> Iterator[Record]:
        """Yield the texts in a fixed order; a .txt file is one, and so is each part of a very long text.

        Raises:
            InputError: There is no such data, it is in no known form, or the column is not there.
            EnvironmentLacks: No library for Parquet is installed.
        """
        if self.path is None:
            yield Record(texts.calibration(), texts.CALIBRATION)
            return
        for file in _files(self.path):
            yield from _READERS[_kind(file)](file, self.column)


def _files(path: Path) -> Sequence[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        message = "there is no such file or folder, and data is never fetched"
        raise InputError(message, path=path, hint=f"name a local {_KINDS} file, or a folder of them")
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
    if not found:
        raise InputError(f"the folder holds no {_KINDS} file", path=path, hint="put the texts into one")
    return found


def _kind(path: Path) -> str:
    """Return the form of a file: what it begins with goes before its name."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_PARQUET))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    if packer := next((name for magic, name in _PACKED.items() if start.startswith(magic)), None):
        raise InputError(f"is packed with {packer}", path=path, hint="unpack it, and give what is in it")
    kind = ".parquet" if start == _PARQUET else path.suffix.lower()
    if kind == ".parquet" and start != _PARQUET:
        raise InputError("is named .parquet and does not begin like one", path=path, hint=f"give {_KINDS}")
    if kind not in _SUFFIXES:
        raise InputError("is in no form that is known", path=path, hint=f"give a {_KINDS} file")
    return kind


def _text_file(path: Path, _: str) -> Iterator[Record]:
    decoder, held, line = codecs.getincrementaldecoder("utf-8-sig")(), "", 1
    try:
        with path.open("rb") as file:
            while raw := file.read(_PART_CHARS):
                try:
                    held += decoder.decode(raw)
                except UnicodeDecodeError as error:
                    raise _not_utf8(error, path, line + held.count("\n")) from error
                while len(held) > _PART_CHARS:
                    part, held = _cut(held)
                    yield Record(part, _origin(path, line))
                    line += part.count("\n")
            held += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(error, path, line + held.count("\n")) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    if held or line == 1:
        yield Record(held, _origin(path, line))


def _origin(path: Path, line: int) -> str:
    return str(path) if line == 1 else f"{path}, from line {line}"


def _cut(text: str) -> tuple[str, str]:
    """Divide a text behind a paragraph, a line or a word: tokenizers take hundreds of bytes for each of one text."""
    for mark in ("\n\n", "\n", " "):
        if (end := text.rfind(mark, _PART_CHARS // 2, _PART_CHARS)) > 0:
            return text[: end + len(mark)], text[end + len(mark) :]
    return text[:_PART_CHARS], text[_PART_CHARS:]


def _parts(record: Record) -> Iterator[Record]:
    """Yield a text that one row holds in pieces of bounded length."""
    text, number = record.text, 1
    while len(text) > _PART_CHARS:
        part, text = _cut(text)
        yield Record(part, f"{record.origin}, part {number}")
        number += 1
    yield Record(text, record.origin if number == 1 else f"{record.origin}, part {number}")


def json_rows(path: Path, form: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines, each with the number of its line; ``form`` is what one looks like.

    Raises:
        InputError: It cannot be read, or a line is no object, or one that names a field twice.
    """
    hint = f"a line is {form}"
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = _decode(line, path, number)
                if text.strip():
                    yield number, _row(text, path, number, hint)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path, hint=hint) from error


def _row(text: str, path: Path, number: int, hint: str) -> dict[str, Any]:
    try:
        row = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"line {number} is not JSON: {error}", path=path, hint=hint) from error
    except NamedTwiceError as error:
        raise InputError(f"line {number} {error}", path=path, hint=hint) from error
    if not isinstance(row, dict):
        raise InputError(f"line {number} is not a JSON object", path=path, hint=hint)
    if _SURROGATE.search(text):
        _check_letters(row, path, number)
    return row


def _check_letters(row: dict[str, Any], path: Path, number: int) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        message = (
            f"line {number} has half a letter, \\u{ord(error.object[error.start]):x} without its other half"
        )
        raise InputError(
            message, path=path, hint="the text was cut within a letter: mend it, or leave it out"
        ) from error


def _json_lines(path: Path, column: str) -> Iterator[Record]:
    for number, row in json_rows(path, '{"text": "..."}'):
        yield from _parts(Record(_field(row, column, path, number), f"{path}:{number}"))


def _decode(raw: bytes, path: Path, line: int) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(error, path, line) from error


def _not_utf8(error: UnicodeDecodeError, path: Path, line: int) -> InputError:
    """``line`` is where the bytes that could not be read begin."""
    where = line + error.object.count(b"\n", 0, error.start)
    message = f"line {where} is not UTF-8: byte 0x{error.object[error.start]:02x}"
    return InputError(message, path=path, hint="save the file as UTF-8 (`iconv -t UTF-8`)")


def _field(row: dict[str, Any], column: str, path: Path, number: int) -> str:
    if column not in row:
        raise _no_column(column, row, path, f"line {number} has")
    return _text(row[column], column, path, f"line {number}")


def _text(value: object, column: str, path: Path, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        raise InputError(f"{where}: {column!r} is null", path=path, hint="leave such rows out")
    message = f"{where}: {column!r} is {type(value).__name__}, not a text"
    raise InputError(message, path=path, hint="name the field that holds the text: --column NAME")


def _no_column(column: str, columns: Iterable[Any], path: Path, where: str) -> InputError:
    names = ", ".join(map(str, columns)) or "no fields"
    hint = "name one of them: --column NAME"
    return InputError(f"there is no field {column!r}; {where} {names}", path=path, hint=hint)


def _parquet(path: Path, column: str) -> Iterator[Record]:
    for number, value in enumerate(_parquet_values(path, column), 1):
        yield from _parts(Record(_text(value, column, path, f"row {number}"), f"{path}: row {number}"))


def _parquet_values(path: Path, column: str) -> Iterator[Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:  # not there, or built for another numpy
        message = f"Parquet files need the package pyarrow: {error}"
        raise EnvironmentLacks(
            message, path=path, hint="pip install 'trtkit[calib]', or save the texts as .jsonl"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        if column not in file.schema_arrow.names:
            raise _no_column(column, file.schema_arrow.names, path, "the file has")
        for batch in file.iter_batches(batch_size=256, columns=[column]):
            yield from batch.column(0).to_pylist()
    except UnicodeDecodeError as error:
        message = f"{column!r} is not UTF-8: byte 0x{error.object[error.start]:02x}"
        raise InputError(message, path=path, hint="save the texts as UTF-8") from error
    except (pa.ArrowException, OSError) as error:  # Arrow's readers of damaged pages raise the latter
        raise InputError(f"not a whole Parquet file: {error}", path=path) from error


_READERS = {".jsonl": _json_lines, ".txt": _text_file, ".parquet": _parquet}
