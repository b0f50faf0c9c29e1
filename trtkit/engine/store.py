"""The content-addressed store: ``<root>/<stage>/<key>/``. A product is there whole, or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock
from platformdirs import user_cache_path

import trtkit
from trtkit.checkpoint.staging import staged_folder
from trtkit.engine.manifest import Manifest, content_key, list_files, read_manifest
from trtkit.errors import EnvironmentLacks, InputError

HOME_VARIABLE = "TRTKIT_HOME"


@dataclass(frozen=True)
class Stage:
    """One step of a build: what decides its bytes, and how to make them in an empty folder."""

    name: str
    inputs: Mapping[str, Any]
    run: Callable[[Path], Mapping[str, Any]]
    """Fill the folder; return facts for the manifest."""
    files: tuple[str, ...] = ()
    """The files that it writes, as far as they are known beforehand."""

    @property
    def key(self) -> str:
        """SHA-256 of the inputs."""
        return content_key(self.inputs)


@dataclass(frozen=True)
class Product:
    """What a stage left in the store."""

    stage: str
    key: str
    path: Path
    hit: bool
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class Store:
    """Products by stage and key. Safe for several processes: one builds, the others wait and then hit."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def path(self, stage: str, key: str) -> Path:
        """Return where a product is, or would be."""
        return self.root / stage / key[:32]

    def find(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of a complete product, or None."""
        path = self.path(stage, key)
        try:
            manifest = read_manifest(path)
            whole = manifest is not None and manifest.key == key and manifest.is_whole(path)
        except (InputError, OSError):
            return None
        return manifest if whole else None

    def produce(self, stage: Stage) -> Product:
        """Return the stage's product, making it unless it is there.

        A kill at any moment leaves the store as it was.

        Raises:
            EnvironmentLacks: The store cannot be written to; a product that is there needs no writing.
        """
        started_s = time.monotonic()
        path = self.path(stage.name, stage.key)
        manifest = self.find(stage.name, stage.key)
        hit = manifest is not None
        if manifest is None:
            with self._locked(path):
                # Who had the lock may have made it.
                manifest = self.find(stage.name, stage.key)
                hit = manifest is not None
                manifest = manifest or self._make(stage, path)
        return Product(stage.name, stage.key, path, hit, time.monotonic() - started_s, manifest.facts)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        lock = FileLock(path.with_suffix(".lock"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            hint = f"free space there, or set {HOME_VARIABLE} to a folder that can be written to"
            message = f"the store cannot be written to: {error.strerror or error}"
            raise EnvironmentLacks(message, path=self.root, hint=hint) from error
        try:
            yield
        finally:
            lock.release()

    def _make(self, stage: Stage, path: Path) -> Manifest:
        with staged_folder(path) as staging:
            facts = dict(stage.run(staging))
            files = list_files(staging)
            manifest = Manifest(stage.name, stage.key, dict(stage.inputs), facts, files, trtkit.__version__)
            manifest.write(staging)
        return manifest


def default_root() -> Path:
    """Return the store's folder: ``$TRTKIT_HOME``, else the user's cache folder."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given).expanduser().absolute() if given else user_cache_path("trtkit")
