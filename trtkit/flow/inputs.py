"""What decides the bytes of products beside the plan: digests of files, versions of libraries."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trtkit.canonical import content_key
from trtkit.checkpoint.hf import CONFIG_FILES, HfCheckpoint, read_json
from trtkit.engine.manifest import digest_of
from trtkit.errors import InputError

MODEL_PACKAGES = ("torch", "transformers", "tokenizers")
"""What runs models for calibration and for the gate: the extra ``calib``."""


def digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file that is there, by name."""
    return {path.name: digest_of(path) for path in sorted(paths) if path.is_file()}


def source_digests(source: HfCheckpoint) -> dict[str, str]:
    """Return the SHA-256 of everything that conversion reads: of descriptions what they say, however it is laid out."""
    described = {path.name: _said(path) for path in _descriptions(source)}
    return described | digests({info.path for info in source.tensors.values()})


def source_files(source: HfCheckpoint) -> dict[str, str]:
    """Return the SHA-256 of the same files as they are, for who looks them up."""
    return digests({*_descriptions(source), *(info.path for info in source.tensors.values())})


def _descriptions(source: HfCheckpoint) -> list[Path]:
    paths = (source.folder / name for name in sorted(CONFIG_FILES))
    return [path for path in paths if path.is_file()]


def _said(path: Path) -> str:
    return content_key(read_json(path))


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
    return {each.relative_to(path.parent).as_posix(): digest_of(each) for each in files}


def versions(packages: Iterable[str] = MODEL_PACKAGES) -> dict[str, str | None]:
    """Return the versions of what computes; None for what is not installed, which is only needed to run."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
