"""What a calibration keeps on disk beside its file: hidden states between two layers, and each finished layer.

A run that was killed goes on with the layer it was in; the folder goes away when the file is there.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from trtkit.checkpoint.safetensors import (
    Array,
    SafetensorsWriter,
    TensorInfo,
    TensorSpec,
    read_header,
    read_metadata,
)
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.quantize.act_range import METADATA

if TYPE_CHECKING:
    import torch

_KEY = "key.json"
_NEXT = "next.json"


class HiddenStates:
    """The hidden states of all samples at one depth, in one file."""

    def __init__(self, path: Path, lengths: Sequence[int], width: int, dtype: torch.dtype) -> None:
        self._path = path
        self._lengths = lengths
        self._width = width
        self._dtype = dtype
        self._starts = [sum(lengths[:number]) * self._row_bytes for number in range(len(lengths))]
        path.touch()

    @property
    def is_whole(self) -> bool:
        """Whether all of them are there."""
        return self._path.stat().st_size == sum(self._lengths) * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return self._width * self._dtype.itemsize

    def read(self, number: int) -> torch.Tensor:
        """Return those of one sample, ``(1, tokens, width)``."""
        import torch

        count = self._lengths[number] * self._row_bytes
        raw = np.fromfile(self._path, np.uint8, count, offset=self._starts[number])
        return torch.from_numpy(raw).view(self._dtype).view(1, -1, self._width)

    def write(self, number: int, states: torch.Tensor) -> None:
        """Keep those of one sample."""
        import torch

        raw = states.contiguous().view(-1).view(torch.uint8).cpu().numpy().data
        with self._path.open("r+b", buffering=0) as file:
            position = self._starts[number]
            while raw:
                count = os.pwrite(file.fileno(), raw, position)
                raw, position = raw[count:], position + count

    def sync(self) -> None:
        """Get them on disk."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())


class State:
    """The folder of one calibration."""

    def __init__(self, folder: Path, hidden: Callable[[Path], HiddenStates]) -> None:
        self._folder = folder
        self._hidden = hidden

    @property
    def next_stage(self) -> int:
        """The first layer that is not finished."""
        return int(self._written().get("stage", 0))

    def notes(self, kind: str) -> list[str]:
        """What finished layers had to tell of one kind."""
        return list(self._written().get(kind, []))

    @property
    def is_whole(self) -> bool:
        """Whether what finished layers have left is all there; a disk may have lost some of it."""
        try:
            stage = self.next_stage
            _ = [read_header(self._stage(each)) for each in range(stage)]
            return stage == 0 or self.before(stage).is_whole
        except (OSError, ValueError, TypeError, InputError):
            return False

    def before(self, stage: int) -> HiddenStates:
        """Return what goes into a layer."""
        return self._hidden(self._folder / f"hidden-{stage % 2}")

    def after(self, stage: int) -> HiddenStates:
        """Return what comes out of it."""
        return self.before(stage + 1)

    def finish(self, stage: int, tensors: Mapping[str, Array], notes: Mapping[str, Sequence[str]]) -> None:
        """Keep what a layer gave; from here on it is not run again."""
        told = {kind: [*self.notes(kind), *each] for kind, each in notes.items()}
        write_tensors(self._stage(stage), tensors)
        self.after(stage).sync()
        _write_json(self._folder / _NEXT, {**self._written(), **told, "stage": stage + 1})

    def _stage(self, stage: int) -> Path:
        return self._folder / f"stage-{stage:05}.safetensors"

    def _written(self) -> dict[str, Any]:
        path = self._folder / _NEXT
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def gather(self, stages: int, metadata: Mapping[str, str], out: Path) -> None:
        """Write the tensors of all layers into one file, which is there whole or not at all."""
        found: dict[str, TensorInfo] = {}
        for stage in range(stages):
            found |= read_header(self._stage(stage))
        whole = self._folder / "whole"
        with SafetensorsWriter(whole, found.values(), metadata) as writer:
            for spec in writer.order:
                writer.write(spec, found[spec.name].chunks())
        whole.replace(out)
        _sync_folder(out.parent)


def folder_of(out: Path) -> Path:
    """Return the folder of the calibration that writes a file."""
    return out.with_name(f".{out.name}.calibration")


def check_place(out: Path, source: Path) -> None:
    """Refuse to write over what is no file of ranges, and beside the weights of the source, as one of which it counts.

    Raises:
        InputError: It would.
    """
    hint = "name another file to write"
    if out.is_dir():
        raise InputError("is a folder", path=out, hint="name the file to write")
    if out.resolve().parent == source.resolve():
        raise InputError("is in the folder of the source", path=out, hint=hint)
    if out.exists() and not _is_ranges(out):
        message = "holds something else than what `trtkit calibrate` writes, and would be replaced"
        raise InputError(message, path=out, hint=hint)


def _is_ranges(path: Path) -> bool:
    try:
        return METADATA in read_metadata(path)
    except (InputError, OSError):
        return False


@contextmanager
def opened(out: Path, key: str, hidden: Callable[[Path], HiddenStates]) -> Iterator[State]:
    """Yield the state of the calibration that writes ``out``; what is there of another one is dropped.

    When the block ends well the state goes away, otherwise it stays for the next run.

    Raises:
        InputError: The place cannot be written to, or another process works there.
        EnvironmentLacks: The disk became full.
    """
    folder = folder_of(out)
    lock = FileLock(out.with_name(f".{out.name}.lock"), blocking=False)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock:
            yield _take_over(folder, key, hidden)
            shutil.rmtree(folder)
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        hint = "wait for it, or write to another file"
        raise InputError("another process calibrates into it", path=out, hint=hint) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"cannot be written: {error.strerror}"
            hint = "free space and run it again: it goes on where it was"
            raise EnvironmentLacks(message, path=out, hint=hint) from error
        raise InputError(
            f"cannot be written: {error.strerror}", path=out, hint="choose another place"
        ) from error


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write a safetensors file."""
    specs = [TensorSpec(name, values.dtype.name, values.shape) for name, values in tensors.items()]
    with SafetensorsWriter(path, specs) as writer:
        for spec in writer.order:
            writer.write(spec, [tensors[spec.name]])


def _take_over(folder: Path, key: str, hidden: Callable[[Path], HiddenStates]) -> State:
    state = State(folder, hidden)
    if not (_is_of(folder / _KEY, key) and state.is_whole):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _write_json(folder / _KEY, {"key": key})
    return state


def _is_of(path: Path, key: str) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")) == {"key": key})
    except (OSError, ValueError):
        return False


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a file that is there whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
