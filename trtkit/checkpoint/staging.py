"""Folders that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtkit.conventions import CHECKPOINT_CONFIG, MANIFEST
from trtkit.errors import EnvironmentLacks, InputError

_MARK = ".trtkit-staging-"
_NO_SPACE = {
    errno.ENOSPC: "free space, or choose another disk",
    errno.EDQUOT: "free space of your quota, or choose another disk",
    errno.EFBIG: "raise the limit on the size of a file (`ulimit -f`), or choose a file system without one",
}
"""Errors of writing, with the way out."""
_CUT_OFF = "free space, or raise the limit on the size of a file (`ulimit -f`)"
"""The way out where numpy says no more than that less was written than it was to be."""
_LAST = (CHECKPOINT_CONFIG, MANIFEST)
"""What makes a folder a checkpoint or a product: without them readers refuse it."""


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder; when the block ends well it becomes ``out``, on disk and in one step.

    What was at ``out`` is replaced. When the block fails, or the process is killed, ``out`` is as it was (or absent,
    in the moment between moving the old folder away and the new one in). A mount point cannot be renamed: there the
    files move one by one, those that describe them last.
    """
    target = out.resolve()
    with scratch_folder(target) as staging:
        yield staging
        _sync(staging)
        if staging.parent == target:
            _refill(staging, target)
        else:
            _swap(staging, target)


@contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder that goes away with the block; those that killed processes left beside it go first.

    Raises:
        InputError: The place cannot be written to.
        EnvironmentLacks: The disk became full.
    """
    parent = staging_place(out)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        folder, lock = _create(parent, _prefix(out))
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", path=out, hint="choose another place"
        ) from error
    try:
        yield folder
    except OSError as error:
        cut_off = _CUT_OFF if error.errno is None and str(error).endswith(" written") else ""
        hint = _NO_SPACE.get(error.errno or 0, cut_off)
        if not hint:
            raise
        free = f"{shutil.disk_usage(parent).free / 1e6:,.0f} MB are free"
        message = f"cannot be written: {error.strerror or error}; {free}"
        raise EnvironmentLacks(message, path=out, hint=hint) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def staging_place(out: Path) -> Path:
    """Return where the folder that becomes ``out`` is made: beside it, or in it where it cannot be renamed."""
    target = out.resolve()
    return target if _is_mount(target) else target.parent


def contents(out: Path) -> list[Path]:
    """Return what a folder holds, without what file systems and conversions put there themselves."""
    held = sorted(out.iterdir()) if out.is_dir() else []
    return [path for path in held if _MARK not in path.name and path.name != "lost+found"]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write readable JSON; the same content gives the same bytes."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _prefix(out: Path) -> str:
    return f".{out.name}{_MARK}"


def _is_mount(folder: Path) -> bool:
    """Return whether a folder is a mount point, binds within one file system included."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return folder.is_mount()
    escaped = str(folder).translate({ord(char): f"\\{ord(char):03o}" for char in " \t\n\\"})
    return any(line.split(" ", 5)[4] == escaped for line in mounts.splitlines())


def _create(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a locked staging folder: the lock ends with the process, however that ends."""
    while True:
        staging = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        staging.chmod(0o755)
        lock = os.open(staging, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if staging.exists():
            return staging, lock
        # Another process took it for an abandoned one before it was locked.
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    """Remove what killed processes left, whatever they were making: staging folders that nobody holds locked."""
    for folder in parent.glob(f".*{_MARK}*"):
        try:
            lock = os.open(folder, os.O_RDONLY)
        except OSError:  # gone already, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _swap(staging: Path, out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        # A rename replaces empty folders only.
        old = Path(tempfile.mkdtemp(prefix=_prefix(out), dir=out.parent))
        out.rename(old)
        staging.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    else:
        staging.rename(out)
    _sync_one(out.parent)


def _refill(staging: Path, out: Path) -> None:
    for path in sorted(contents(out), key=lambda path: path.name not in _LAST):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in sorted(staging.iterdir(), key=lambda path: path.name in _LAST):
        path.rename(out / path.name)
    _sync_one(out)


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
