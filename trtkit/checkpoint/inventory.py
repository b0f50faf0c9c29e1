"""What a converted source consisted of when it was whole: names and sizes, written last."""

from __future__ import annotations

from pathlib import Path

from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.staging import write_json
from trtkit.errors import InputError

_RECORD = "inventory.json"


def record_files(folder: Path) -> None:
    """Write down the files of a folder that is complete."""
    write_json(folder / _RECORD, _sizes(folder))


def is_whole(folder: Path) -> bool:
    """Return whether every file that was written down is still there in its size; reads no weights."""
    try:
        return read_json(folder / _RECORD) == _sizes(folder)
    except InputError:
        return False


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.name: path.stat().st_size
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != _RECORD
    }
