"""A model repository on disk: write what was rendered, notice drift, put engine and tokenizer in place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from trtkit.contract.formats import BackendName
from trtkit.conventions import (
    BLS_MODEL,
    CHECKPOINT_CONFIG,
    DRAFT_MODEL,
    ENGINE_MODEL,
    POSTPROCESSING_MODEL,
    PREPROCESSING_MODEL,
)
from trtkit.errors import InputError
from trtkit.triton.config import BANNER
from trtkit.triton.repository import ENGINE_FOLDER, TOKENIZER_FOLDER

RECORD = ".trtkit-files"
"""Lists what trtkit wrote, so that a later run can remove what it no longer produces and nothing else."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


def write(files: Mapping[str, bytes], out: Path) -> list[str]:
    """Bring ``out`` in line with ``files``; return the paths that changed. Raises InputError.

    Each file is replaced atomically. Files that trtkit did not write are left alone, and never overwritten.
    """
    recorded = _recorded(out)
    _refuse_foreign_files(files, recorded, out)
    stale = [path for path in recorded if path not in files and (out / path).is_file()]
    changed = [path for path, content in files.items() if _read(out / path) != content]
    # Recorded before written: a killed run leaves a record that names too much, never too little.
    _replace(out / RECORD, _record([*files, *stale]))
    for path in changed:
        _replace(out / path, files[path])
    for path in stale:
        _remove(out / path, out)
    _replace(out / RECORD, _record(files))
    return sorted(changed + stale)


def check(files: Mapping[str, bytes], out: Path) -> list[str]:
    """Return the paths that :func:`write` would change."""
    stale = [path for path in _recorded(out) if path not in files and (out / path).is_file()]
    return sorted([path for path, content in files.items() if _read(out / path) != content] + stale)


def install(repo: Path, engine_dir: Path, tokenizer_dir: Path, draft_dir: Path | None = None) -> None:
    """Place engines and tokenizer under the version directories, as hard links where possible."""
    if not (tokenizer_dir / "tokenizer.json").is_file():
        raise InputError(
            "the tokenizer folder has no tokenizer.json",
            path=tokenizer_dir,
            hint="give a local folder with a tokenizer.json; names of a hub are never looked up",
        )
    tokenizer_files = [tokenizer_dir / name for name in TOKENIZER_FILES if (tokenizer_dir / name).is_file()]
    _place_engine(engine_dir, repo / ENGINE_MODEL / "1" / ENGINE_FOLDER)
    if draft_dir is not None:
        _place_engine(draft_dir, repo / DRAFT_MODEL / "1" / ENGINE_FOLDER)
        _place(tokenizer_files, tokenizer_dir, repo / DRAFT_MODEL / "1" / TOKENIZER_FOLDER)
    for model in (ENGINE_MODEL, PREPROCESSING_MODEL, POSTPROCESSING_MODEL, BLS_MODEL):
        _place(tokenizer_files, tokenizer_dir, repo / model / "1" / TOKENIZER_FOLDER)


def needs_device(repo: Path) -> bool:
    """Tell whether the engine of a repository runs on a GPU."""
    config = repo / ENGINE_MODEL / "1" / ENGINE_FOLDER / CHECKPOINT_CONFIG
    try:
        return bool(json.loads(config.read_text(encoding="utf-8"))["backend"] == BackendName.RTX)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no engine that trtkit made


def _recorded(out: Path) -> list[str]:
    text = (_read(out / RECORD) or b"").decode(errors="surrogateescape")
    paths = [line for line in text.splitlines() if line and not line.startswith("#")]
    for path in paths:
        if ".." in Path(path).parts or not (out / path).parent.resolve().is_relative_to(out.resolve()):
            raise InputError(
                f"names {path!r}, which is not inside this folder",
                path=out / RECORD,
                hint="take that line out: trtkit did not write it",
            )
    return paths


def _record(paths: Iterable[str]) -> bytes:
    return (BANNER + "".join(f"{path}\n" for path in sorted(paths))).encode()


def _refuse_foreign_files(files: Mapping[str, bytes], recorded: Iterable[str], out: Path) -> None:
    foreign = [path for path in files if path not in set(recorded) and (out / path).exists()]
    foreign = [path for path in foreign if _read(out / path) != files[path]]
    if foreign:
        raise InputError(
            f"trtkit did not write {', '.join(foreign)} and will not overwrite it",
            path=out,
            hint="give another folder with -o, or move the file away",
        )


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}.staged")
    try:
        with staged.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _remove(path: Path, root: Path) -> None:
    """Remove a file and the directories that it leaves empty."""
    path.unlink()
    for parent in path.parents:
        if parent == root or any(parent.iterdir()):
            return
        parent.rmdir()


def _place_engine(source: Path, target: Path) -> None:
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    if not files:
        raise InputError("there is no engine here", path=source, hint="build it first: trtkit build CONTRACT")
    _place(files, source, target)


def _place(files: Iterable[Path], source: Path, target: Path) -> None:
    """Replace the folder ``target`` by links to ``files``."""
    staged = target.with_name(f".{target.name}.{os.getpid()}.staged")
    retired = target.with_name(f".{target.name}.{os.getpid()}.retired")
    try:
        for file in files:
            _link(file.resolve(), staged / file.relative_to(source))
        if target.exists():
            target.rename(retired)
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
