"""Say what a folder is and whether it is sound, from its headers and its manifest, offline."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path, PurePath

from trtkit.conventions import CHECKPOINT_CONFIG, MANIFEST
from trtkit.engine.manifest import Manifest, read_manifest, sha256_of
from trtkit.engine.rtx.elsewhere import OTHER_ENGINE_FILE, SCRIPT_FILE
from trtkit.errors import ContractError, InputError, Problem, Severity
from trtkit.flow.inspect import Kind, inspect, kind_of
from trtkit.flow.inspect.repository import engine_folders

OTHER_VERSION = "written by another version of trtkit"
_BUILD_AGAIN = "build it again with --cache redo"


def verify_folder(folder: Path) -> tuple[str, list[Problem]]:
    """Return what the folder is and what is wrong with it.

    A checkpoint, TensorRT-LLM's or Hugging Face's, is checked against its own ``config.json`` (names, shapes, data
    types; header-only), an engine for the files of its ranks, a model repository is parsed and linted, and whatever
    has a manifest is compared with it byte for byte.

    Raises:
        InputError: The folder is none of these, or a source that cannot be read or converted.
    """
    kind = kind_of(folder)
    problems = changed_files(folder)
    if kind is Kind.CHECKPOINT:
        found = _of_checkpoint(folder)
    elif kind is Kind.HUGGING_FACE:
        found = _of_source(folder)
    else:
        # What the manifest says of a file is more exact.
        named = {problem.file for problem in problems} | ({str(folder)} if problems else set())
        found = [each for each in inspect(folder).all_problems if each.file not in named]
    told = {each.file for each in found}
    return kind.value, [*problems, *found, *(each for each in _added(folder) if each.file not in told)]


def changed_files(folder: Path) -> list[Problem]:
    """Return what is not as it was built, byte for byte: by the folder's manifest, or those of the engines in it."""
    places = [folder] if (folder / MANIFEST).exists() else engine_folders(folder)
    return [each for place in places if (place / MANIFEST).exists() for each in _against_manifest(place)]


def _of_checkpoint(folder: Path) -> list[Problem]:
    from trtkit.checkpoint.trtllm import loader_warnings, verify_any

    try:
        found = verify_any(folder)
        errors = [each for each in found if each.severity is Severity.ERROR]
        return errors or [*found, *loader_warnings(folder)]
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        message = f"a value is not of the kind that a checkpoint has: {error}"
        return [Problem(message, file=str(folder / CHECKPOINT_CONFIG), hint="convert it again")]


def _of_source(folder: Path) -> list[Problem]:
    """Return what a conversion would find in the headers; what is no source at all is raised."""
    from trtkit.checkpoint.hf import HfCheckpoint
    from trtkit.checkpoint.mapping import map_tensors

    source = HfCheckpoint.open(folder)
    warnings = [replace(each, file=each.file or str(folder)) for each in source.warnings]
    try:
        map_tensors(source.config, source.tensors, file=str(folder), storage=source.storage)
    except ContractError as error:
        return [*error.problems, *warnings]
    return warnings


def _against_manifest(folder: Path) -> list[Problem]:
    path = folder / MANIFEST
    try:
        manifest = read_manifest(folder)
    except InputError as error:
        return [Problem(error.message, file=error.path, hint=error.hint)]
    if manifest is None:
        return [Problem(OTHER_VERSION, file=str(path), hint="build it again")]
    problems = []
    if not manifest.is_as_written:
        problems.append(Problem("was changed after it was written", file=str(path), hint=_BUILD_AGAIN))
    return [*problems, *_differing_files(folder, manifest)]


def _differing_files(folder: Path, manifest: Manifest) -> list[Problem]:
    owners = defaultdict(list)
    for name, facts in manifest.files.items():
        owners[facts["sha256"]].append(name)
    found = {name: _difference(folder / name, facts, owners) for name, facts in manifest.files.items()}
    return [Problem(text, file=str(folder / name), hint=_BUILD_AGAIN) for name, text in found.items() if text]


def _added(folder: Path) -> list[Problem]:
    try:
        manifest = read_manifest(folder)
    except InputError:
        return []  # which is told already
    names = (
        [name for name in manifest.added(folder) if not _is_made_there(name, manifest)] if manifest else []
    )
    message = "was added after the manifest was written"
    return [Problem(message, file=str(folder / name), hint="remove it") for name in names]


def _is_made_there(name: str, manifest: Manifest) -> bool:
    """Tell whether a file is the engine that the product's own script has made on another machine."""
    path = PurePath(name)
    return path.name == OTHER_ENGINE_FILE and path.with_name(SCRIPT_FILE).as_posix() in manifest.files


def _difference(path: Path, facts: dict[str, object], owners: dict[str, list[str]]) -> str:
    """Return how a file differs from what the manifest says; empty where it does not."""
    if not os.path.isfile(path):
        return "the file is missing"
    size, digest = path.stat().st_size, ""
    if size == facts["size_bytes"] and (digest := sha256_of(path)) == facts["sha256"]:
        return ""
    if other := owners.get(digest or sha256_of(path)):
        return f"holds what belongs into {other[0]}"
    if size != facts["size_bytes"]:
        return f"has {size} bytes, the manifest says {facts['size_bytes']}"
    return "its SHA-256 is not the manifest's"
