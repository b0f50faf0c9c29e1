"""Folders that are in use: shared locks that end with the process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PARTS = re.compile(r"""[\s=:,;'"]""")
"""What stands between paths in one argument: of a shell, an option, a mount."""


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


Identity = tuple[int, int]
"""Device and inode, which a folder has by whatever name it is reached."""


def named_folders() -> frozenset[Identity]:
    """Return the folders that other processes name, stand in, or have files of: a server holds none of them.

    Arguments may be relative, or links; of another user's process only those that are neither relative nor in a
    container can be followed.
    """
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name != str(os.getpid()):
            found.update(_named_by(process))
    whole = {parent for place in found for parent in (place, *map(str, Path(place).parents))}
    return frozenset(filter(None, map(identity, whole)))


def identity(path: str | Path) -> Identity | None:
    """Return what a path leads to; None where that is nothing, or cannot be looked at."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _named_by(process: Path) -> Iterator[str]:
    """Yield what one process names, with links resolved, as far as it can be seen."""
    with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
        words = process.joinpath("cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
        parts = {part for word in words for part in (word, word.partition("=")[2], *_PARTS.split(word))}
        for part in filter(None, parts):
            # Within the process's own root, which a container has; this machine's for whom it is closed.
            places = [f"{process}/root{part}", part] if part.startswith("/") else [f"{process}/cwd/{part}"]
            yield from (os.path.realpath(place) for place in places if identity(place))
            yield from (place for place in places[:-1] if identity(place))
    with contextlib.suppress(OSError):
        yield os.readlink(process / "cwd")
    with contextlib.suppress(OSError):
        yield from (os.readlink(each.path) for each in os.scandir(process / "fd"))
    with contextlib.suppress(OSError):
        mapped = process.joinpath("maps").read_text(errors="surrogateescape").splitlines()
        yield from {line.split(maxsplit=5)[5] for line in mapped if "/" in line}


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
