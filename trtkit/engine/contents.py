"""What is in the store: how large, how old, used by which contracts, in use now; and what may go."""

from __future__ import annotations

import enum
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtkit.checkpoint.inventory import is_whole
from trtkit.conventions import MANIFEST
from trtkit.engine.holds import Identity, identity, is_free, named_folders, taken
from trtkit.engine.manifest import read_manifest
from trtkit.engine.store import CORRUPT, MARKER, STAGES, UNCACHED
from trtkit.engine.uses import USES, Use, read_uses
from trtkit.errors import InputError

_SOURCES = "source"
_WORKING = ("log", "jit")
"""Folders of the store that keep no products."""
_INVENTORY = "inventory.json"
_KEY = "[0-9a-f]{32}"
_STAGING = r"\.trtkit-staging-\w+"
_NAMES: dict[str, re.Pattern[str]] = {
    **{stage: re.compile(rf"{_KEY}|\.{_KEY}({_STAGING})?") for stage in STAGES},
    _SOURCES: re.compile(rf".+-([0-9a-f]{{16}}|[0-9a-f]{{8}}-\d+)|\..+{_STAGING}"),
    CORRUPT: re.compile(rf"({'|'.join(STAGES)})-[0-9a-f]{{12}}-\w{{8}}"),
    UNCACHED: re.compile("build-[0-9a-f]{16}"),
}
"""What the store calls its entries, by the folder that they are in."""


_OWN = frozenset({*_NAMES, *_WORKING, USES})


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
    users: dict[str, list[Use]] = {}
    for use in read_uses(root):
        for product in use.products:
            users.setdefault(product, []).append(use)
    named = named_folders()
    entries = [_entry(root, path, users, named) for path, is_own in _folders(root) if is_own]
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
    """Remove an entry unless somebody has begun to use it; a kill half-way leaves one that is unfinished.

    Raises:
        OSError: It cannot be removed.
    """
    with taken(entry.path) as free:
        if not free or entry.path.parent.is_symlink():
            return False
        # By this name no build takes it for whole, wherever the removal stops.
        name = entry.path.name.lstrip(".").partition(".trtkit-staging-")[0]
        doomed = entry.path.with_name(f".{name}.trtkit-staging-{secrets.token_hex(4)}")
        if _NAMES[entry.stage].fullmatch(doomed.name):
            entry.path.rename(doomed)
        else:
            doomed = entry.path
        shutil.rmtree(doomed)
        return True


def list_foreign(root: Path) -> list[Path]:
    """Return what lies in the store's folder and no build has made: it is nobody's to remove."""
    return sorted(each for each, is_own in _folders(root) if not is_own)


def _may_go(entry: Entry, limits: Limits, now_s: float) -> bool:
    if entry.state in _USELESS or (limits.unused and not entry.contracts):
        return True
    return limits.max_age_s is not None and now_s - entry.used_s > limits.max_age_s


def _folders(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield entries, and whether the store made them; all that is in a folder without marker is somebody else's."""
    is_store = _is_file(root / MARKER)
    for each in _scan(root):
        if not is_store or not each.is_dir(follow_symlinks=False) or each.name not in _OWN:
            if each.name != MARKER:
                yield Path(each.path), False
        elif each.name in _NAMES:
            for inner in _scan(Path(each.path)):
                if inner.is_dir(follow_symlinks=False):
                    yield Path(inner.path), _is_entry(each.name, inner)
                elif not inner.name.endswith(".lock"):
                    yield Path(inner.path), False


def _is_entry(stage: str, folder: os.DirEntry[str]) -> bool:
    """Tell whether a folder is one that builds make: by its name, and a whole one by what it describes itself with."""
    if not _NAMES[stage].fullmatch(folder.name):
        return False
    if stage in {CORRUPT, UNCACHED} or folder.name.startswith("."):
        return True
    return _is_file(Path(folder.path, _INVENTORY if stage == _SOURCES else MANIFEST))


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda each: each.name)
    except OSError:
        return []


def _is_file(path: Path) -> bool:
    """Tell whether a path is a file itself, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _entry(root: Path, path: Path, users: dict[str, list[Use]], named: frozenset[Identity]) -> Entry | None:
    try:
        manifest = path / MANIFEST
        folder = path.stat()
        uses = users.get(path.relative_to(root).as_posix(), ())
        # A source has no manifest whose time would say it; a build that only reads the store leaves no record.
        touched_s = manifest.stat().st_mtime if manifest.is_file() else folder.st_mtime
        return Entry(
            stage=path.parent.name,
            key=path.name,
            path=path,
            state=_state(path),
            in_use=not is_free(path) or identity(path) in named,
            made_s=folder.st_mtime,
            used_s=max([touched_s, *(use.built_s for use in uses)]),
            contracts=tuple(dict.fromkeys(" ".join([use.contract, *use.overrides]) for use in uses)),
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
        return State.WHOLE if is_whole(path) else State.DAMAGED
    try:
        manifest = read_manifest(path)
    except InputError:
        return State.DAMAGED
    if manifest is None:
        return State.OTHER_VERSION if (path / MANIFEST).is_file() else State.DAMAGED
    return State.DAMAGED if manifest.lacks(path) else State.WHOLE


def _blocks(folder: Path) -> Iterator[tuple[tuple[int, int], int]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(parent, name))
            yield (found.st_dev, found.st_ino), found.st_size
