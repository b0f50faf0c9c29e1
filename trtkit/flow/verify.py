"""Say what a folder is and whether it is sound, from its headers and its manifest, offline."""

from __future__ import annotations

from pathlib import Path

from trtkit.conventions import CHECKPOINT_CONFIG, MANIFEST, rank_file
from trtkit.engine.manifest import read_manifest, sha256_of
from trtkit.errors import InputError, Problem


def verify_folder(folder: Path) -> tuple[str, list[Problem]]:
    """Return what the folder is and what is wrong with it.

    A checkpoint, TensorRT-LLM's or Hugging Face's, is checked against its own ``config.json`` (names, shapes, data
    types; header-only), a model repository is parsed and linted, and whatever has a manifest is compared with it byte
    for byte.

    Raises:
        InputError: The folder is none of these, or a source that cannot be converted.
    """
    if not folder.is_dir():
        raise InputError("there is no such folder", path=folder)
    kind, problems = "", []
    if (folder / CHECKPOINT_CONFIG).is_file() and (folder / rank_file(0)).exists():
        kind, problems = "checkpoint", _of_checkpoint(folder)
    elif (folder / CHECKPOINT_CONFIG).is_file() and any(folder.glob("*.safetensors")):
        kind = "Hugging Face checkpoint"
        _account(folder)
    elif any(folder.glob("*/config.pbtxt")):
        from trtkit.triton.lint import lint

        kind, problems = "model repository", lint(folder)
    if (folder / MANIFEST).exists():
        kind = kind or "build product"
        problems += _against_manifest(folder)
    if not kind:
        hint = f"expected {CHECKPOINT_CONFIG} with weights, model folders with config.pbtxt, or {MANIFEST}"
        raise InputError(
            "neither a checkpoint nor a model repository nor a build product", path=folder, hint=hint
        )
    return kind, problems


def _of_checkpoint(folder: Path) -> list[Problem]:
    from trtkit.checkpoint.trtllm import verify

    try:
        return verify(folder)
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        message = f"a value is not of the kind that a checkpoint has: {error}"
        return [Problem(message, file=str(folder / CHECKPOINT_CONFIG), hint="convert it again")]


def _account(folder: Path) -> None:
    """Raise what a conversion would find in the headers of its source."""
    from trtkit.checkpoint.hf import HfCheckpoint
    from trtkit.checkpoint.mapping import map_tensors

    source = HfCheckpoint.open(folder)
    map_tensors(source.config, source.tensors, file=str(folder), storage=source.storage)


def _against_manifest(folder: Path) -> list[Problem]:
    manifest = read_manifest(folder)
    if manifest is None:
        return [
            Problem(
                "written by another version of trtkit", file=str(folder / MANIFEST), hint="build it again"
            )
        ]
    problems = []
    for name, facts in manifest.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(Problem("the file is missing", file=str(path), hint="build it again"))
        elif path.stat().st_size != facts["size_bytes"]:
            message = f"has {path.stat().st_size} bytes, the manifest says {facts['size_bytes']}"
            problems.append(Problem(message, file=str(path), hint="build it again"))
        elif sha256_of(path) != facts["sha256"]:
            problems.append(
                Problem("its SHA-256 is not the manifest's", file=str(path), hint="build it again")
            )
    return problems
