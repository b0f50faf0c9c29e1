"""A model repository on disk: write what was rendered, whole or not at all, and notice what was changed."""

from __future__ import annotations

import difflib
import enum
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import InputError
from trtkit.triton.config import BANNER

RECORD = ".trtkit-files"
"""Lists what trtkit wrote, with its SHA-256: a later run removes what it no longer produces and nothing else, and
notices what somebody edited."""
_STAGED = ".trtkit-staged"
_RECORDED = re.compile(r"(?:([0-9a-f]{64})  )?(.+)")
Recorded = dict[str, set[str]]
"""SHA-256 of each path: of what was written, and in the middle of a run also of what is being written."""


class State(str, enum.Enum):
    """Why a file is not as it would be written."""

    MISSING = "missing"
    OUTDATED = "outdated"
    """trtkit wrote it, from another contract or by another version."""
    EDITED = "edited"
    """trtkit wrote it, and somebody changed it."""
    FOREIGN = "not trtkit's"
    LEFT_OVER = "left over"
    """trtkit wrote it, and would write it no more."""


@dataclass(frozen=True)
class Drift:
    """One file that would change."""

    path: str
    state: State
    diff: str = ""
    """Unified, from what is there to what would be; empty for what is no text."""


def write(files: Mapping[str, bytes], out: Path, *, overwrite: bool = False) -> list[str]:
    """Bring ``out`` in line with ``files``; return the paths that changed.

    Everything is written beside first and then renamed, so that a full disk changes nothing; a run that is killed while
    it renames is completed by the next one. Files that trtkit did not write are left alone, and never overwritten.

    Raises:
        InputError: A file there is not trtkit's, or was edited and may not be overwritten; or another process writes.
    """
    with _alone(out):
        recorded = _recorded(out)
        found = list(_drifts(files, recorded, out))
        _refuse(found, files, out, overwrite=overwrite)
        changed = [each.path for each in found if each.path in files]
        stale = [each.path for each in found if each.path not in files]
        _stage(files, changed, out)
        # Recorded before renamed: a killed run leaves a record that names too much, never too little.
        now = {path: {_sha256(content)} for path, content in files.items()}
        _replace(out, RECORD, _record(_union(recorded, now)))
        for path in changed:
            _place(out, path)
        for path in stale:
            remove(out / path, out)
        _replace(out, RECORD, _record(now))
    return sorted(changed + stale)


def recorded(folder: Path) -> set[str]:
    """Return the paths that trtkit wrote, the record's own among them.

    Raises:
        InputError: The record names what is not inside of the folder.
    """
    return {*_recorded(folder), RECORD}


def touched(folder: Path) -> list[Drift]:
    """Return what somebody edited or removed of what trtkit wrote, by path.

    Raises:
        InputError: As :func:`recorded`.
    """
    found = {
        path: _state(_read(folder / path), digests) for path, digests in sorted(_recorded(folder).items())
    }
    return [Drift(path, state) for path, state in found.items() if state is not State.OUTDATED]


def check(files: Mapping[str, bytes], out: Path) -> list[str]:
    """Return the paths that :func:`write` would change."""
    return [each.path for each in drifts(files, out)]


def drifts(files: Mapping[str, bytes], out: Path) -> list[Drift]:
    """Return what :func:`write` would change, and why, by path."""
    return sorted(_drifts(files, _recorded(out), out), key=lambda each: each.path)


def _drifts(files: Mapping[str, bytes], recorded: Recorded, out: Path) -> Iterator[Drift]:
    for path, content in files.items():
        there = _read(out / path)
        if there != content:
            yield Drift(path, _state(there, recorded.get(path)), _diff(path, there or b"", content))
    for path, digests in recorded.items():
        there = None if path in files else _read(out / path)
        if there is not None:
            state = _state(there, digests)
            yield Drift(path, state if state is State.EDITED else State.LEFT_OVER)


def _state(there: bytes | None, digests: set[str] | None) -> State:
    if there is None:
        return State.MISSING
    if digests is None:
        return State.FOREIGN
    return State.OUTDATED if not digests or _sha256(there) in digests else State.EDITED


def _diff(path: str, old: bytes, new: bytes) -> str:
    try:
        before, after = (content.decode().splitlines() for content in (old, new))
    except UnicodeDecodeError:
        return ""
    lines = difflib.unified_diff(before, after, f"{path} as it is", f"{path} as it would be", lineterm="")
    return "\n".join(lines)


def _refuse(found: Iterable[Drift], files: Mapping[str, bytes], out: Path, *, overwrite: bool) -> None:
    foreign = [each.path for each in found if each.state is State.FOREIGN]
    foreign += [path for path in files if any(_is_file(out, above) for above in Path(path).parents)]
    foreign += [path for path in files if (out / path).is_dir()]
    if foreign:
        raise InputError(
            f"trtkit did not write {', '.join(foreign)} and will not overwrite it",
            path=out,
            hint="give another folder with -o, or move the file away",
        )
    edited = [each.path for each in found if each.state is State.EDITED]
    if edited and not overwrite:
        raise InputError(
            f"edited since trtkit wrote it: {', '.join(edited)}",
            path=out,
            hint="put the change into the contract and give --overwrite, or give another folder with -o",
        )


def _is_file(out: Path, path: Path) -> bool:
    return path != Path() and (out / path).exists() and not (out / path).is_dir()


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Make the folder that files are staged in, which one process has at a time; it goes away on every way out."""
    staged = out / _STAGED
    descriptor = _take(staged, out)
    try:
        yield
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        os.close(descriptor)


def _take(staged: Path, out: Path) -> int:
    try:
        staged.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(staged)
    except (BlockingIOError, FileNotFoundError):
        hint = "wait until it is done, or give another folder"
        raise InputError("is in use by another process", path=out, hint=hint) from None
    except (NotADirectoryError, FileExistsError, PermissionError) as error:
        hint = "name a folder that you may write to"
        raise InputError(f"cannot be written to: {error.strerror}", path=out, hint=hint) from error
    for left in staged.iterdir():  # by a run that was killed
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    return descriptor


def _lock(folder: Path) -> int:
    """Return the open folder, locked. Raises BlockingIOError when somebody has it, or has just removed it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(folder.stat(), os.fstat(descriptor)):
            return descriptor
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    raise BlockingIOError


def _recorded(out: Path) -> Recorded:
    text = (_read(out / RECORD) or b"").decode(errors="surrogateescape")
    found: Recorded = {}
    for line in text.splitlines():
        entry = _RECORDED.fullmatch(line)
        if entry is None or line.startswith("#"):
            continue
        digest, path = entry.groups()
        _refuse_outside(path, out)
        found.setdefault(path, set()).update({digest} if digest else set())
    return found


def _refuse_outside(path: str, out: Path) -> None:
    if ".." in Path(path).parts or not (out / path).parent.resolve().is_relative_to(out.resolve()):
        raise InputError(
            f"names {path!r}, which is not inside this folder",
            path=out / RECORD,
            hint="take that line out: trtkit did not write it",
        )


def _record(recorded: Recorded) -> bytes:
    lines = [f"{digest}  {path}\n" for path in sorted(recorded) for digest in sorted(recorded[path])]
    return (BANNER + "".join(lines)).encode()


def _union(one: Recorded, other: Recorded) -> Recorded:
    return {path: one.get(path, set()) | other.get(path, set()) for path in {*one, *other}}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _stage(files: Mapping[str, bytes], changed: Iterable[str], out: Path) -> None:
    """Write everything that changes beside its place; on failure nothing has changed."""
    for path in changed:
        _write(out / _STAGED / path, files[path])


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if content.startswith(b"#!"):
        path.chmod(0o755)


def _replace(out: Path, name: str, content: bytes) -> None:
    _write(out / _STAGED / name, content)
    _place(out, name)


def _place(out: Path, path: str) -> None:
    (out / path).parent.mkdir(parents=True, exist_ok=True)
    (out / _STAGED / path).replace(out / path)


def remove(path: Path, root: Path) -> None:
    """Remove a file and the directories that it leaves empty."""
    path.unlink()
    for parent in path.parents:
        if parent == root or any(parent.iterdir()):
            return
        parent.rmdir()
