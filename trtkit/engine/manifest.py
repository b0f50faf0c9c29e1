"""The manifest: what a build product is made of, in canonical JSON beside the product."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import trtkit
from trtkit.conventions import MANIFEST
from trtkit.errors import InputError

SCHEMA_VERSION = 2
_CHUNK_BYTES = 1 << 20
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

    def damage(self, folder: Path) -> str:
        """Return what the folder lacks, empty when nothing; what is in the files is for ``trtkit verify``."""
        if not self.is_as_written:
            return f"{MANIFEST} was changed after it was written"
        for name, facts in self.files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != facts["size_bytes"]:
                return f"{name} has {path.stat().st_size:,} bytes of {facts['size_bytes']:,}"
        return ""

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
    for facts in manifest.files.values():
        _ = facts["sha256"] + "", facts["size_bytes"] + 0
    return manifest


def canonical_json(value: Mapping[str, Any]) -> str:
    """Return JSON with sorted keys and no spaces, so that equal content has equal bytes."""
    # JSON has no number that is not finite; such a measurement becomes the text "NaN" or "Infinity".
    finite = json.loads(json.dumps(value), parse_constant=str)
    return json.dumps(finite, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_key(inputs: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of a stage's inputs."""
    return hashlib.sha256(canonical_json(inputs).encode()).hexdigest()


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


def list_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return digest and size of every file under a folder, the manifest left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {
        path.relative_to(folder).as_posix(): {"sha256": sha256_of(path), "size_bytes": path.stat().st_size}
        for path in paths
    }
