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

from trtkit.errors import EnvironmentLacks, InputError

_MARK = ".trtkit-staging-"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``out``; when the block ends well it becomes ``out``, on disk and in one step.

    What was at ``out`` is replaced. When the block fails, or the process is killed, ``out`` is as it was (or absent,
    in the moment between moving the old folder away and the new one in).
    """
    target = out.resolve()
    with scratch_folder(target) as staging:
        yield staging
        _sync(staging)
        _swap(staging, target)


@contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``out`` that goes away with the block; those of killed processes beside it go first.

    Raises:
        InputError: The place cannot be written to.
        EnvironmentLacks: The disk became full.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out.parent)
        folder, lock = _create(out)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", path=out, hint="choose another place"
        ) from error
    try:
        yield folder
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise EnvironmentLacks(f"cannot be written: {error.strerror}", path=out, hint="free space") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write readable JSON; the same content gives the same bytes."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _prefix(out: Path) -> str:
    return f".{out.name}{_MARK}"


def _create(out: Path) -> tuple[Path, int]:
    """Make a locked staging folder: the lock ends with the process, however that ends."""
    while True:
        staging = Path(tempfile.mkdtemp(prefix=_prefix(out), dir=out.parent))
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


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
