"""The manifest: what a build product is made of, in canonical JSON (RFC 8785) beside the product."""

from __future__ import annotations

import hashlib
import json
import os
import re
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
_SHOWN_CHARS = 120
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
        try:
            return self.key == content_key(self.inputs) and self.digest == self._digest()
        except RecursionError:  # nested deeper than anything that was ever written
            return False

    def lacks(self, folder: Path) -> str:
        """Return what names and sizes alone show to be wrong, empty when nothing; reads no file but the manifest."""
        if not self.is_as_written:
            return f"{MANIFEST} was changed after it was written"
        for name, facts in self.files.items():
            path = folder / name
            # A name that the file system does not even take is no file; Path.is_file raises.
            if not os.path.isfile(path):
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
        if isinstance(raw, dict) and raw.get("schema") != SCHEMA_VERSION:
            return None
        _check(raw)
        return Manifest(**raw)
    except FileNotFoundError:
        return None
    except RecursionError:
        problem = "nested too deeply"
    except OSError as error:
        problem = error.strerror or str(error)
    except ValueError as error:
        problem = str(error)
    raise InputError(f"not a trtkit manifest: {problem}", path=path, hint="build it again")


_NAME = re.compile(r"[a-z][a-z-]{0,31}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "stage": (str,), "key": (str,), "inputs": (dict,), "facts": (dict,), "files": (dict,), "trtkit": (str,),
    "origin": (dict,), "gate": (dict, type(None)), "schema": (int,), "digest": (str,),
}  # fmt: skip
_ORIGIN: Mapping[str, Mapping[str, type]] = {
    "contract": {"path": str, "name": str, "set": list},
    "target": {
        "backend": str,
        "gpu": str,
        "sm": int,
        "sms": list,
        "trtllm": str,
        "release": str,
        "image": str,
        "tensorrt": str,
        "driver": str,
    },
    "tools": {"tensorrt_rtx": str},
}
"""Fields of the origin that are read again, and their kinds; any may be missing or null."""


def _check(raw: Any) -> None:
    """Make sure that what is read of a manifest later is there and of its kind; ValueError names what is not."""
    if type(raw) is not dict:
        raise ValueError(f"it is {_short(raw)}, and no object")
    for name in (*_FIELDS, *raw):
        if name not in _FIELDS or name not in raw:
            raise ValueError(f"the key {name} is {'unknown' if name in raw else 'missing'}")
        if type(raw[name]) not in _FIELDS[name]:
            raise ValueError(f"{name} is {_short(raw[name])}")
    if not _NAME.fullmatch(raw["stage"]):
        raise ValueError(f"stage is {_short(raw['stage'])}")
    for name, facts in raw["files"].items():
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise ValueError(f"{_short(name)} is not inside of the folder")
        if not _is_entry(facts):
            raise ValueError(f"files.{name} is {_short(facts)}, and not a sha256 and size_bytes")
    _check_origin(raw["origin"])


def _is_entry(facts: Any) -> bool:
    return (
        isinstance(facts, dict)
        and facts.keys() == {"sha256", "size_bytes"}
        and isinstance(facts["sha256"], str)
        and bool(_DIGEST.fullmatch(facts["sha256"]))
        and type(facts["size_bytes"]) is int
        and facts["size_bytes"] >= 0
    )


def _check_origin(origin: Mapping[str, Any]) -> None:
    for table, content in origin.items():
        if type(content) is not dict:
            raise ValueError(f"origin.{table} is {_short(content)}")
    for table, kinds in _ORIGIN.items():
        for name, kind in kinds.items():
            value = origin.get(table, {}).get(name)
            items = value if isinstance(value, list) else [value]
            inner = int if name == "sms" else str if kind is list else kind
            if value is not None and (
                type(value) is not kind or any(type(each) is not inner for each in items)
            ):
                raise ValueError(f"origin.{table}.{name} is {_short(value)}")


def _short(value: Any) -> str:
    """Return how a value is written in JSON, as far as a message has room."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


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
