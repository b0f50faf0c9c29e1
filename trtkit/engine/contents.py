"""What is in the store: how large, how old, used by which contracts, in use now; and what may go."""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtkit.conventions import MANIFEST
from trtkit.engine.holds import command_lines, is_free, taken
from trtkit.engine.manifest import read_manifest
from trtkit.engine.store import CORRUPT, UNCACHED
from trtkit.engine.uses import USES, read_uses
from trtkit.errors import InputError

_LOGS = "log"
_SOURCES = "source"


class State(str, enum.Enum):
    """What an entry is good for."""

    WHOLE = "whole"
    DAMAGED = "damaged"
    OTHER_VERSION = "other version"
    """Made by a trtkit whose manifests this one does not read."""
    SET_ASIDE = "set aside"
    """A damaged product that a build has moved away."""
    UNFINISHED = "unfinished"
    """What a build is making, or a killed one has left."""
    UNCACHED = "uncached"
    """Products of a build that bypassed the store."""


_USELESS = frozenset({State.DAMAGED, State.SET_ASIDE, State.UNFINISHED, State.UNCACHED})


@dataclass(frozen=True)
class Entry:
    """One folder of the store."""

    stage: str
    key: str
    path: Path
    state: State
    in_use: bool
    made_s: float
    used_s: float
    """Times since the epoch; of the last use, the last build that found it."""
    contracts: tuple[str, ...]
    """Those whose last build went through it."""
    blocks: frozenset[tuple[tuple[int, int], int]]
    """Every file on disk once, as its identity and size: products share files by hard links."""

    @property
    def bytes(self) -> int:
        """Size of its files; a file that other entries share counts for each."""
        return sum(size for _, size in self.blocks)


@dataclass(frozen=True)
class Limits:
    """What is to go beside what is of no use."""

    max_age_s: float | None = None
    """Not used for longer than this."""
    max_bytes: int | None = None
    """Those used least lately, until the rest fits."""
    unused: bool = False
    """Those that no contract uses."""


def list_entries(root: Path) -> list[Entry]:
    """Return all entries, the latest used first."""
    users: dict[str, list[str]] = {}
    for use in read_uses(root):
        for product in use.products:
            users.setdefault(product, []).append(" ".join([use.contract, *use.overrides]))
    named = command_lines()
    entries = [_entry(root, path, users, named) for path in _folders(root)]
    return sorted((each for each in entries if each), key=lambda each: -each.used_s)


def bytes_on_disk(entries: Iterable[Entry]) -> int:
    """Return the size of all files, each counted once."""
    return sum(
        size for _, size in frozenset[tuple[tuple[int, int], int]]().union(*(each.blocks for each in entries))
    )


def choose(entries: Sequence[Entry], limits: Limits, *, now_s: float) -> list[Entry]:
    """Return what may go: never what is in use."""
    chosen = [each for each in entries if not each.in_use and _may_go(each, limits, now_s)]
    kept = [each for each in entries if each not in chosen]
    oldest_first = sorted((each for each in kept if not each.in_use), key=lambda each: each.used_s)
    while limits.max_bytes is not None and oldest_first and bytes_on_disk(kept) > limits.max_bytes:
        chosen.append(oldest_first.pop(0))
        kept.remove(chosen[-1])
    return chosen


def remove(entry: Entry) -> bool:
    """Remove an entry unless somebody has begun to use it; a kill half-way leaves one that is damaged."""
    with taken(entry.path) as free:
        if free:
            # Without its manifest no build takes it for whole, wherever the removal stops.
            (entry.path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(entry.path, ignore_errors=True)
        return free and not entry.path.exists()


def _may_go(entry: Entry, limits: Limits, now_s: float) -> bool:
    if entry.state in _USELESS or (limits.unused and not entry.contracts):
        return True
    return limits.max_age_s is not None and now_s - entry.used_s > limits.max_age_s


def _folders(root: Path) -> Iterator[Path]:
    for stage in sorted(root.iterdir()) if root.is_dir() else ():
        if stage.name not in {USES, _LOGS} and stage.is_dir():
            yield from (path for path in sorted(stage.iterdir()) if path.is_dir())


def _entry(root: Path, path: Path, users: dict[str, list[str]], named: str) -> Entry | None:
    try:
        manifest = path / MANIFEST
        stat = path.stat()
        used_s = manifest.stat().st_mtime if manifest.is_file() else stat.st_mtime
        return Entry(
            stage=path.parent.name,
            key=path.name,
            path=path,
            state=_state(path),
            in_use=not is_free(path) or str(path) in named,
            made_s=stat.st_mtime,
            used_s=used_s,
            contracts=tuple(users.get(path.relative_to(root).as_posix(), ())),
            blocks=frozenset(_blocks(path)),
        )
    except FileNotFoundError:  # somebody removed it meanwhile
        return None


def _state(path: Path) -> State:
    if path.parent.name in {CORRUPT, UNCACHED}:
        return State.SET_ASIDE if path.parent.name == CORRUPT else State.UNCACHED
    if path.name.startswith("."):
        return State.UNFINISHED
    if path.parent.name == _SOURCES:
        return State.WHOLE
    try:
        manifest = read_manifest(path)
    except InputError:
        return State.DAMAGED
    if manifest is None:
        return State.OTHER_VERSION if (path / MANIFEST).is_file() else State.DAMAGED
    return State.DAMAGED if manifest.damage(path) else State.WHOLE


def _blocks(folder: Path) -> Iterator[tuple[tuple[int, int], int]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            stat = os.lstat(os.path.join(parent, name))
            yield (stat.st_dev, stat.st_ino), stat.st_size
