"""What is not rendered but linked into a repository: engines and tokenizer."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from trtkit.contract.formats import BackendName
from trtkit.conventions import (
    BLS_MODEL,
    CHECKPOINT_CONFIG,
    DRAFT_MODEL,
    ENGINE_MODEL,
    MANIFEST,
    POSTPROCESSING_MODEL,
    PREPROCESSING_MODEL,
)
from trtkit.engine.graph.spec import DATA_FILE
from trtkit.engine.manifest import read_manifest
from trtkit.errors import InputError
from trtkit.triton.folder import RECORD, recorded, remove, write
from trtkit.triton.llmapi import DRAFT_FOLDER
from trtkit.triton.llmapi import SETTINGS as LLM_SETTINGS
from trtkit.triton.repository import ENGINE_FOLDER, TOKENIZER_FOLDER
from trtkit.triton.vllm import SETTINGS as VLLM_SETTINGS

_PIECE_BYTES = 1 << 30
_DEPTH = 3
"""Engines and tokenizers are ``MODEL/VERSION/FOLDER``."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


def install(repo: Path, engine_dir: Path, tokenizer_dir: Path, draft_dir: Path | None = None) -> None:
    """Place engines and tokenizer under the version directories, as hard links where possible."""
    if not (tokenizer_dir / "tokenizer.json").is_file():
        raise InputError(
            "the tokenizer folder has no tokenizer.json",
            path=tokenizer_dir,
            hint="give a local folder with a tokenizer.json; names of a hub are never looked up",
        )
    tokenizer_files = [tokenizer_dir / name for name in TOKENIZER_FILES if (tokenizer_dir / name).is_file()]
    version = repo / ENGINE_MODEL / "1"
    _place_engine(engine_dir, version / ENGINE_FOLDER)
    if any((version / settings).is_file() for settings in (LLM_SETTINGS, VLLM_SETTINGS)):
        # One model does all, and its folder has the tokenizer.
        if draft_dir is not None:
            _place_engine(draft_dir, version / DRAFT_FOLDER)
        return
    if draft_dir is not None:
        _place_engine(draft_dir, repo / DRAFT_MODEL / "1" / ENGINE_FOLDER)
        _place(tokenizer_files, tokenizer_dir, repo / DRAFT_MODEL / "1" / TOKENIZER_FOLDER)
    for model in (ENGINE_MODEL, PREPROCESSING_MODEL, POSTPROCESSING_MODEL, BLS_MODEL):
        _place(tokenizer_files, tokenizer_dir, repo / model / "1" / TOKENIZER_FOLDER)


def deliver(product: Path, out: Path) -> None:
    """Make a repository of the store one in ``out``, which shares its engines and tokenizers by hard links.

    The manifest goes first and comes last: a folder that has one is whole.

    Raises:
        InputError: A file there is not trtkit's, or was edited; or ``product`` is no product.
    """
    old, new = read_manifest(out), read_manifest(product)
    if new is None:
        raise InputError("no complete product of a build", path=product, hint="build it again")
    texts = recorded(product)
    write({name: (product / name).read_bytes() for name in texts - {RECORD}}, out)
    (out / MANIFEST).unlink(missing_ok=True)
    for name in set(old.files) - set(new.files) if old else ():
        if (out / name).is_file():
            remove(out / name, out)
    linked = defaultdict(list)
    for name in sorted(set(new.files) - texts):
        linked[Path(*Path(name).parts[:_DEPTH])].append(product / name)
    for folder, paths in linked.items():
        _place(paths, product / folder, out / folder)
    shutil.copyfile(product / MANIFEST, out / MANIFEST)


def needs_device(repo: Path) -> bool:
    """Tell whether the engine of a repository runs on a GPU."""
    config = repo / ENGINE_MODEL / "1" / ENGINE_FOLDER / CHECKPOINT_CONFIG
    try:
        return bool(json.loads(config.read_text(encoding="utf-8"))["backend"] == BackendName.RTX)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no engine that trtkit made


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
    if source.name == DATA_FILE:
        # The package onnx reads no weights from a file that has two names.
        _clone(source, target)
        return
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)


def _clone(source: Path, target: Path) -> None:
    """Copy a file; file systems that can (XFS, Btrfs) let both share their blocks."""
    try:
        with source.open("rb") as read, target.open("wb") as written:
            while os.copy_file_range(read.fileno(), written.fileno(), _PIECE_BYTES):
                pass
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        shutil.copyfile(source, target)  # another file system, of an old kernel
