"""The content-addressed store: ``<root>/<stage>/<key>/``. A product is there whole, or not at all."""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

import trtkit
from trtkit.canonical import content_key
from trtkit.checkpoint.staging import staged_folder
from trtkit.conventions import MANIFEST
from trtkit.engine.holds import Holds, is_free
from trtkit.engine.manifest import Manifest, list_files, read_manifest
from trtkit.errors import EnvironmentLacks, InputError, Problem, Severity

HOME_VARIABLE = "TRTKIT_HOME"
POLICY_VARIABLE = "TRTKIT_CACHE_POLICY"
CORRUPT, UNCACHED = "corrupt", "uncached"
"""Folders of the store for damaged products that were set aside, and for those of builds without it."""
STAGES = ("source", "calibrate", "alpha", "convert", "gate", "baseline", "compile", "gate-engine", "repo")
"""All that make products; only folders of these names are a store's."""
MARKER = ".trtkit-store"
"""File that says that a folder is a store."""
_MARKER_TEXT = """This folder is a store of trtkit. `trtkit cache gc` removes products in it, and nothing else.
"""
_KEY_CHARS = 32


class CachePolicy(str, enum.Enum):
    """What a build does with products that are there, and with those that it makes."""

    ON = "on"
    """Use what is there, keep what is made."""
    OFF = "off"
    """Make everything, in a folder that no other build looks into."""
    REDO = "redo"
    """Make everything, and put it in the place of what is there."""
    READONLY = "readonly"
    """Use what is there, and refuse to make anything."""
    VERIFY = "verify"
    """Use what is there once every byte of it was read, keep what is made."""


@dataclass(frozen=True)
class Stage:
    """One step of a build: what decides its bytes, and how to make them in an empty folder."""

    name: str
    inputs: Mapping[str, Any]
    run: Callable[[Path], Mapping[str, Any]]
    """Fill the folder; return facts for the manifest."""
    files: tuple[str, ...] = ()
    """The files that it writes, as far as they are known beforehand."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Other programs that it runs, with their arguments."""
    unfit: Callable[[Mapping[str, Any]], str] = lambda _: ""
    """Say of a product's facts why it has to be made again, under the same key."""

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
    """Products by stage and key. Safe for several processes: one builds, the others wait and then hit.

    What a process found or made is held until the process ends, or until :meth:`release`: nobody removes it meanwhile.
    """

    def __init__(
        self,
        root: Path | None = None,
        policy: CachePolicy | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.root = root or default_root()
        self.tell = tell
        """Hears what a person who waits should know."""
        self.policy = policy or default_policy()
        self.set_aside: list[Problem] = []
        """Damaged products that were found in the way, and where they are now."""
        self._holds = Holds()
        self._made: set[Path] = set()
        """Products of this very build, which use each other whatever the policy."""
        is_off = self.policy is CachePolicy.OFF
        self._base = self.root / UNCACHED / f"build-{secrets.token_hex(8)}" if is_off else self.root

    def path(self, stage: str, key: str) -> Path:
        """Return where a product is, or would be."""
        return self._base / stage / key[:_KEY_CHARS]

    def find(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of a complete product, or None."""
        path = self.path(stage, key)
        try:
            manifest = read_manifest(path)
            whole = manifest is not None and manifest.key == key and not self._damage(manifest, path)
        except (InputError, OSError):
            return None
        return manifest if whole else None

    def damage(self, stage: str, key: str) -> str:
        """Return what is wrong with what lies at a product's place; empty when nothing does, or nothing is there."""
        path = self.path(stage, key)
        try:
            if not path.is_dir():
                return ""
            manifest = read_manifest(path)
            if manifest is None:
                return f"there is no {MANIFEST} that this version reads"
            return (
                self._damage(manifest, path) if manifest.key == key else "its manifest is another product's"
            )
        except (InputError, OSError) as error:
            return str(getattr(error, "message", error))

    def produce(
        self, stage: Stage, *, origin: Mapping[str, Any] | None = None, gate: Mapping[str, Any] | None = None
    ) -> Product:
        """Return the stage's product, making it unless it is there; ``origin`` and ``gate`` go into its manifest.

        A kill at any moment leaves the store as it was.

        Raises:
            EnvironmentLacks: The store cannot be written to, or must not be and lacks the product; one that is there
                needs no writing.
        """
        if stage.name not in STAGES:
            raise ValueError(f"{stage.name} is no stage of the store")
        started_s = time.monotonic()
        self._mark()
        uses = self.policy not in {CachePolicy.OFF, CachePolicy.REDO}
        uses = uses or self.path(stage.name, stage.key) in self._made
        manifest = self._held(stage) if uses else None
        hit = manifest is not None
        if manifest is None:
            self._prepare(stage)
            with self._locked(self.path(stage.name, stage.key)):
                # Who had the lock may have made it.
                manifest = self._held(stage) if uses else None
                hit = manifest is not None
                manifest = manifest or self._make(stage, dict(origin or {}), dict(gate) if gate else None)
        path = self.path(stage.name, stage.key)
        return Product(stage.name, stage.key, path, hit, time.monotonic() - started_s, manifest.facts)

    def hold(self, folder: Path) -> None:
        """Keep whatever of the store a folder belongs to from being removed; one elsewhere is nobody's to remove."""
        root, folder = self.root.resolve(), folder.resolve()
        if folder.is_relative_to(root) and len(parts := folder.relative_to(root).parts) > 1:
            self._holds.hold(root / parts[0] / parts[1])

    def release(self) -> None:
        """Let go of every product."""
        self._holds.release()

    def _damage(self, manifest: Manifest, path: Path) -> str:
        return manifest.damage(path, fully=self.policy is CachePolicy.VERIFY)

    def _mark(self) -> None:
        """Say that the folder is a store; one that cannot be written to does without."""
        marker = self.root / MARKER
        if self.policy is not CachePolicy.READONLY and not marker.exists():
            with contextlib.suppress(OSError):
                self.root.mkdir(parents=True, exist_ok=True)
                marker.write_text(_MARKER_TEXT, encoding="utf-8")

    def _held(self, stage: Stage) -> Manifest | None:
        """Find a product and hold it; one that was removed before it was held is none."""
        path = self.path(stage.name, stage.key)
        found = self.find(stage.name, stage.key)
        if found is None or stage.unfit(found.facts) or not self._holds.hold(path):
            return None
        try:
            if read_manifest(path) != found:
                return None
        except InputError:
            return None
        if self.policy is not CachePolicy.READONLY:
            # Its time says when it was found whole last; a store that cannot be written to does without.
            with contextlib.suppress(OSError):
                os.utime(path / MANIFEST)
        return found

    def _prepare(self, stage: Stage) -> None:
        """Refuse to make what must not be made, and keep the folder of a build without store from being removed."""
        if self.policy is CachePolicy.READONLY:
            why, found = self.damage(stage.name, stage.key), self.find(stage.name, stage.key)
            state = "does not fit" if found else "is damaged" if why else "is not in the store"
            why = stage.unfit(found.facts) if found else why
            state += f" ({why})" if why else ""
            message = f"the product of {stage.name} {state}, and nothing may be built with --cache readonly"
            hint = "build it with --cache on; `trtkit build CONTRACT --explain` tells what changed"
            raise EnvironmentLacks(message, path=self.path(stage.name, stage.key), hint=hint)
        if self.policy is CachePolicy.OFF:
            with self._writing():
                self._base.mkdir(parents=True, exist_ok=True)
            self._holds.hold(self._base)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        lock = FileLock(path.with_suffix(".lock"))
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                self.tell(f"waiting for another process that makes {path}")
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = f"free space there, or set {HOME_VARIABLE} to a folder that can be written to"
            message = f"the store cannot be written to: {error.strerror or error}"
            raise EnvironmentLacks(message, path=self.root, hint=hint) from error

    def _make(self, stage: Stage, origin: dict[str, Any], gate: dict[str, Any] | None) -> Manifest:
        path = self.path(stage.name, stage.key)
        self._set_aside(stage, path)
        if path.exists() and not is_free(path):
            hint = "stop what uses it, or build with --cache off"
            raise EnvironmentLacks("is in use, and would be replaced", path=path, hint=hint)
        with staged_folder(path) as staging:
            facts = dict(stage.run(staging))
            manifest = Manifest(
                stage=stage.name,
                key=stage.key,
                inputs=dict(stage.inputs),
                facts=facts,
                files=list_files(staging),
                trtkit=trtkit.__version__,
                origin=origin,
                gate=gate,
            )
            manifest.write(staging)
        if not self._holds.hold(path):
            raise EnvironmentLacks("was removed as soon as it was made", path=path, hint="run it again")
        self._made.add(path)
        return manifest

    def _set_aside(self, stage: Stage, path: Path) -> None:
        """Move what is damaged out of the way, where it can be looked at."""
        why = self.damage(stage.name, stage.key)
        if not why:
            return
        with self._writing():
            (self.root / CORRUPT).mkdir(parents=True, exist_ok=True)
            place = Path(tempfile.mkdtemp(prefix=f"{stage.name}-{path.name[:12]}-", dir=self.root / CORRUPT))
            path.rename(place)
        message = f"a damaged product of {stage.name} was set aside and made again: {why}"
        hint = "look at it, then `trtkit cache gc`; if it happens again, check the disk"
        self.set_aside.append(Problem(message, hint=hint, file=str(place), severity=Severity.WARNING))


def default_root() -> Path:
    """Return the store's folder: ``$TRTKIT_HOME``, else the user's cache folder."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given).expanduser().absolute() if given else user_cache_path("trtkit")


def default_policy() -> CachePolicy:
    """Return the policy: ``$TRTKIT_CACHE_POLICY``, else to use the store.

    Raises:
        InputError: The variable holds no policy.
    """
    given = os.environ.get(POLICY_VARIABLE, CachePolicy.ON.value)
    try:
        return CachePolicy(given.lower())
    except ValueError:
        known = ", ".join(policy.value for policy in CachePolicy)
        raise InputError(f"{POLICY_VARIABLE} is {given!r}", hint=f"use one of {known}") from None
