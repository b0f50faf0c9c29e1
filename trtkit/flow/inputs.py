"""What decides the bytes of products beside the plan: digests of files, versions of libraries."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trtkit.checkpoint.hf import CONFIG_FILES, HfCheckpoint
from trtkit.engine.manifest import sha256_of
from trtkit.errors import InputError

MODEL_PACKAGES = ("torch", "transformers", "tokenizers")
"""What runs models for calibration and for the gate: the extra ``calib``."""


def digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file that is there, by name."""
    return {path.name: _digest(path) for path in sorted(paths) if path.is_file()}


def source_digests(source: HfCheckpoint) -> dict[str, str]:
    """Return the SHA-256 of everything that conversion reads."""
    described = {source.folder / name for name in CONFIG_FILES}
    return digests(described | {info.path for info in source.tensors.values()})


def data_digests(path: Path | None) -> dict[str, str] | None:
    """Return the SHA-256 of a file that the contract names, or of all in a folder, by path; None for None.

    Raises:
        InputError: There is no such file or folder.
    """
    if path is None:
        return None
    if not path.exists():
        hint = "paths in a contract are relative to it"
        raise InputError("there is no such file or folder", path=path, hint=hint)
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {each.relative_to(path.parent).as_posix(): _digest(each) for each in files}


def versions(packages: Iterable[str] = MODEL_PACKAGES) -> dict[str, str | None]:
    """Return the versions of what computes; None for what is not installed, which is only needed to run."""
    return {package: _version(package) for package in packages}


def _digest(path: Path) -> str:
    stat = path.stat()
    return _digest_once(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest_once(path: Path, *_: int) -> str:
    """Hash a file once, however many formats are made of it."""
    return sha256_of(path)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
