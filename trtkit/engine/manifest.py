"""The manifest: what a build product is made of, in canonical JSON (RFC 8785) beside the product."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path, PurePath
from typing import Any

import trtkit
from trtkit.canonical import canonical_json, content_key
from trtkit.conventions import MANIFEST
from trtkit.errors import InputError

SCHEMA_VERSION = 3
_CHUNK_BYTES = 1 << 20
_SMALL_BYTES = 1 << 20
"""What is read at every hit; larger files only where their time says that they may have changed."""
_SETTLED_NS = 2 * 10**9
"""Age from which a file's time tells a later change; clocks of file systems tick slowly."""
_PRODUCING_ROOMS = ("catalog", "plan", "checkpoint", "quantize", "engine")


@dataclass(frozen=True)
class Manifest:
    """One product's inputs, origin, files and facts."""

    stage: str
    key: str
    inputs: dict[str, Any]
    """Everything that can change the product's bytes; the key is their SHA-256."""
    facts: dict[str, Any]
    """What the stage reported: sizes, seconds, verdicts."""
    files: dict[str, dict[str, Any]]
    """Relative path to ``sha256`` and ``size_bytes``."""
    trtkit: str
    origin: dict[str, Any] = field(default_factory=dict)
    """Contract, source, plan, target, flags and tools, as :class:`trtkit.engine.origin.Origin` has them."""
    gate: dict[str, Any] | None = None
    """What the quality gate measured, where it ran before this stage."""
    schema: int = SCHEMA_VERSION
    digest: str = ""
    """SHA-256 of all the rest; empty until it is written."""

    @property
    def is_as_written(self) -> bool:
        """Tell whether nobody has changed it since: the key fits its inputs, and the digest everything."""
        return self.key == content_key(self.inputs) and self.digest == self._digest()

    def lacks(self, folder: Path) -> str:
        """Return what names and sizes alone show to be wrong, empty when nothing; reads no file but the manifest."""
        if not self.is_as_written:
            return f"{MANIFEST} was changed after it was written"
        for name, facts in self.files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != facts["size_bytes"]:
                return f"{name} has {path.stat().st_size:,} bytes of {facts['size_bytes']:,}"
        return ""

    def damage(self, folder: Path, *, fully: bool = False) -> str:
        """Return what is wrong with the folder, empty when nothing.

        Small files are read. A large one is where it was written after the manifest's own time, which every build that
        found the product whole has renewed: so a copied store is read once. ``fully`` reads all, and finds what was
        added.
        """
        if lack := self.lacks(folder):
            return lack
        whole_at_ns = (folder / MANIFEST).stat().st_mtime_ns
        for name, facts in self.files.items():
            stat = (folder / name).stat()
            # Clocks of file systems tick every few milliseconds: the same time may be later.
            doubtful = fully or stat.st_size <= _SMALL_BYTES or stat.st_mtime_ns >= whole_at_ns
            if doubtful and digest_of(folder / name) != facts["sha256"]:
                return f"{name} has other content than was written"
        added = self.added(folder) if fully else []
        return f"{added[0]} was added" if added else ""

    def added(self, folder: Path) -> list[str]:
        """Return what is in the folder and not in the manifest, without what Python compiled of its files."""
        found = [path.relative_to(folder) for path in _entries(folder)]
        strange = [
            path for path in found if path.as_posix() not in self.files and not self._is_compiled(path)
        ]
        return sorted(path.as_posix() for path in strange if str(path) != MANIFEST)

    def _is_compiled(self, path: PurePath) -> bool:
        """Tell whether Python made a file from one of the product: Triton imports models where they lie."""
        source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
        return path.parent.name == "__pycache__" and path.suffix == ".pyc" and source.as_posix() in self.files

    def write(self, folder: Path) -> None:
        """Write the manifest into the folder, as canonical JSON."""
        text = canonical_json(asdict(replace(self, digest=self._digest())))
        (folder / MANIFEST).write_text(text, encoding="utf-8")

    def _digest(self) -> str:
        content = asdict(self)
        del content["digest"]
        return content_key(content)


def read_manifest(folder: Path) -> Manifest | None:
    """Return the folder's manifest, or None where there is none (the product is not complete).

    Raises:
        InputError: The file is there but is not a manifest that this version reads.
    """
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("schema") != SCHEMA_VERSION:
            return None
        return _checked(Manifest(**raw))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"not a trtkit manifest: {error}", path=path, hint="build it again") from error


def _checked(manifest: Manifest) -> Manifest:
    """Return a manifest whose parts are of the kinds that they should be; raise TypeError or KeyError for another."""
    texts = (manifest.stage, manifest.key, manifest.trtkit, manifest.digest)
    tables = (manifest.inputs, manifest.facts, manifest.gate or {}, *manifest.origin.values())
    if not (all(isinstance(each, str) for each in texts) and all(isinstance(each, dict) for each in tables)):
        raise TypeError("a field is of another kind")
    for name, facts in manifest.files.items():
        _ = facts["sha256"] + "", facts["size_bytes"] + 0
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise ValueError(f"{name!r} is not inside of the folder")
    _check_origin(manifest.origin)
    return manifest


_KINDS: Mapping[str, Mapping[str, type]] = {
    "contract": {"path": str, "name": str, "set": list},
    "target": {
        "backend": str,
        "gpu": str,
        "sm": int,
        "sms": list,
        "trtllm": str,
        "release": str,
        "image": str,
    },
}
"""Fields of the origin that are read again, and their kinds; any may be missing or null."""


def _check_origin(origin: Mapping[str, Any]) -> None:
    for table, kinds in _KINDS.items():
        for name, kind in kinds.items():
            value = origin.get(table, {}).get(name)
            items = value if isinstance(value, list) else [value]
            inner = int if name == "sms" else str if kind is list else kind
            if value is not None and (
                type(value) is not kind or any(type(each) is not inner for each in items)
            ):
                raise TypeError(f"origin.{table}.{name} is {value!r}")


@cache
def code_digest() -> str:
    """Return the SHA-256 (hex) of the code that makes products: a change of it makes them stale, a release need not."""
    package = Path(trtkit.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for room in _PRODUCING_ROOMS for path in (package / room).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file, read in bounded chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file, which is read again when its size or time has changed, or was just set."""
    stat = path.stat()
    if time.time_ns() - stat.st_mtime_ns < _SETTLED_NS:
        return sha256_of(path)
    return _digest_once(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest_once(path: Path, *_: int) -> str:
    return sha256_of(path)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield every file and link under a folder; links are not followed."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (Path(parent, name) for name in (*names, *links))


def list_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return digest and size of every file under a folder, its own manifest left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return {
        path.relative_to(folder).as_posix(): {"sha256": sha256_of(path), "size_bytes": path.stat().st_size}
        for path in paths
    }
