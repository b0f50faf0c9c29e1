"""JSON descriptions beside weights; damage is a problem that is named, not an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import read_json
from trtkit.conventions import MANIFEST
from trtkit.engine.manifest import Manifest, read_manifest
from trtkit.errors import InputError, Problem


def read_description(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Return the JSON object in a file, and what is wrong with it; an empty one for none."""
    try:
        return read_json(path), []
    except InputError as error:
        return {}, [Problem(error.message, file=str(path), hint=error.hint)]


def read_origin(folder: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Return what a folder's manifest says about where it comes from; empty without one that this version reads."""
    if not (folder / MANIFEST).is_file():
        return {}, []
    try:
        manifest = read_manifest(folder)
    except InputError as error:
        return {}, [Problem(error.message, file=error.path, hint=error.hint)]
    if manifest is None:
        return {"manifest": "of another version of trtkit"}, []
    damage = manifest.lacks(folder)
    hint = "build it again with --cache redo"
    return _summary(manifest), [Problem(damage, file=str(folder), hint=hint)] if damage else []


def _summary(manifest: Manifest) -> dict[str, Any]:
    origin = manifest.origin
    contract, target = origin.get("contract") or {}, origin.get("target") or {}
    return {
        "stage": manifest.stage,
        "key": manifest.key,
        "contract": contract.get("path"),
        "source": (origin.get("source") or {}).get("name"),
        "built_for": {name: value for name, value in target.items() if value is not None},
        "tools": origin.get("tools") or {"trtkit": manifest.trtkit},
        **({"gate": manifest.gate.get("verdict")} if manifest.gate else {}),
    }
