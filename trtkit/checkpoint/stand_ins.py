"""What is commonly found in the place of a file of weights: nothing, a pointer, a web page, a dead link."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trtkit.errors import InputError

HEAD_BYTES = 1024
_LFS_FIRST_LINE = b"version https://git-lfs"


def lfs_size(path: Path) -> int | None:
    """Return the size that a Git-LFS pointer file stands for, or None when the file is not a pointer."""
    with path.open("rb") as file:
        return _pointed_size(file.read(HEAD_BYTES))


def check_file(path: Path, *, kind: str) -> None:
    """Recognize a stand-in for a file of ``kind``.

    Raises:
        InputError: It is one, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(HEAD_BYTES)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    check_start(path, start, kind=kind)


def check_start(path: Path, start: bytes, *, kind: str) -> None:
    """Recognize a stand-in by the first bytes of a file that should be of ``kind``.

    Raises:
        InputError: It is one.
    """
    if not start:
        raise InputError("the file is empty (0 bytes)", path=path, hint="download the file again")
    size = _pointed_size(start)
    if size is not None:
        message = f"a Git-LFS pointer, not the file itself ({size:,} bytes)"
        raise InputError(message, path=path, hint="run `git lfs pull` in the model's folder")
    # A safetensors header of 60 bytes also begins with "<"; but its length ends in zero bytes.
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<" and 0 not in start[:8]:
        hint = "open it in a text editor to see what the server said, then download the file again"
        raise InputError(f"an HTML page, not a {kind} file", path=path, hint=hint)


def check_links(folder: Path, files: Sequence[Path]) -> None:
    """List every link among the files of a folder whose target is gone: one copy mends them all.

    Raises:
        InputError: There are some.
    """
    dead = [f"{path.name} -> {os.readlink(path)}" for path in files if not path.exists()]
    if dead:
        hint = "copy the folder again with what its links name: `cp -rL FROM TO`"
        raise InputError(f"links to files that are not there: {', '.join(dead)}", path=folder, hint=hint)


def _pointed_size(start: bytes) -> int | None:
    if not start.startswith(_LFS_FIRST_LINE):
        return None
    sizes = [line[5:] for line in start.splitlines() if line.startswith(b"size ")]
    return int(sizes[0]) if sizes and sizes[0].isdigit() else 0
