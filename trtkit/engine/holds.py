"""Folders that are in use: shared locks that end with the process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Holds:
    """The folders that this process holds."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}

    def hold(self, folder: Path) -> bool:
        """Keep others from removing a folder; return False when one of them has done so already."""
        descriptor = _open(folder)
        if descriptor is None:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not _is_at(folder, descriptor):
            os.close(descriptor)
            return False
        if (old := self._descriptors.pop(folder, None)) is not None:
            os.close(old)
        self._descriptors[folder] = descriptor
        return True

    def release(self) -> None:
        """Let go of all of them."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


@contextmanager
def taken(folder: Path) -> Iterator[bool]:
    """Take a folder for removal; yield False, and take nothing, while anybody holds it, or when it is a link."""
    descriptor = _open(folder, os.O_NOFOLLOW)
    if descriptor is None:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def is_free(folder: Path) -> bool:
    """Tell whether nobody holds a folder."""
    with taken(folder) as free:
        return free


def command_lines() -> str:
    """Return the command lines of all processes: a server holds nothing, and names the folder that it serves."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            texts.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(texts)


def _open(folder: Path, flags: int = 0) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | flags)
    except OSError:
        return None


def _is_at(folder: Path, descriptor: int) -> bool:
    """Tell whether the open folder is still the one of that name."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    except OSError:
        return False
