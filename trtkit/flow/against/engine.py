"""Engines, alone or in a repository: built for one machine, and loaded by the release that built them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from trtkit.catalog.gpus import GPUS
from trtkit.conventions import CHECKPOINT_CONFIG, MANIFEST
from trtkit.engine.manifest import Manifest, read_manifest
from trtkit.engine.origin import build_command
from trtkit.errors import Problem, Severity
from trtkit.flow.against.comparison import Comparison
from trtkit.flow.against.software import (
    ON_GPUS,
    RTX,
    backend_for,
    doubts,
    fix_of,
    line_for,
    open_questions,
    software_pairs,
    with_software,
)
from trtkit.flow.against.target import CPU, ON_CPUS, Target, release_facts
from trtkit.flow.inspect.description import read_description
from trtkit.flow.inspect.engine import engine_version
from trtkit.flow.inspect.repository import engine_folders
from trtkit.plan.preflight.target import TRTLLM_BACKENDS


@dataclass(frozen=True)
class Built:
    """What a folder was made for, and by which build."""

    target: Target
    origin: Mapping[str, Any]


def compare_engine(folder: Path, target: Target, *, rebuild: Mapping[str, Any] | None = None) -> Comparison:
    """Compare what an engine, or a repository, was built for; ``rebuild`` is the origin that builds for the target."""
    built = built_for(folder)
    if built is None:
        problem = Problem("nothing in it says what it was built for", file=str(folder), hint="build it again")
        return Comparison((problem,))
    have = built.target
    changes = _changes(have, target)
    hint = build_command(built.origin, changes) if rebuild is None else build_command(rebuild, {})
    pairs = _pairs(have, target, any_cpu=rebuild is None)
    compared = tuple(name for name, (mine, theirs) in pairs.items() if None not in {mine, theirs})
    problems = [
        *_contradictions(folder, have),
        *_differences(folder, built, target, pairs, hint),
    ]
    if not problems:
        problems += _doubts(folder, have, target, hint)
    return Comparison(tuple(problems), compared, open_questions(have, target))


def built_for(folder: Path) -> Built | None:
    """Return what an engine, repository or product was built for: its manifest says so, or its engine's own file."""
    manifest = read_manifest(folder) if (folder / MANIFEST).is_file() else None
    engines = engine_folders(folder) or [folder]
    config, _ = read_description(engines[0] / CHECKPOINT_CONFIG)
    said = release_facts(engine_version(config) or "")
    if manifest is not None and manifest.origin.get("target"):
        return Built(_of_manifest(manifest, said), manifest.origin)
    if engines != [folder]:
        return built_for(engines[0])
    if config.get("backend"):
        return Built(Target(str(config["backend"])), {})
    return Built(with_software(Target("tensorrt", **said), {}), {}) if said else None


def _of_manifest(manifest: Manifest, said: Mapping[str, str]) -> Target:
    """Return what a manifest says, with the release that built the engine and not the one that was planned."""
    target = manifest.origin["target"]
    names = ("backend", "gpu", "sm")
    by = release_facts(str(manifest.facts.get("trtllm") or "")) or said
    digest = manifest.facts.get("image_digest")
    planned = Target(
        **{name: target.get(name) for name in names},
        line=target.get("trtllm") or by.get("line"),
        sms=tuple(target.get("sms") or ()),
        release=by.get("release"),
        image_digest=digest if isinstance(digest, str) else None,
    )
    return with_software(planned, manifest.origin)


def _pairs(have: Target, target: Target, *, any_cpu: bool) -> dict[str, tuple[Any, Any]]:
    """Return what both sides say of each thing that has to be equal; None for what one of them does not say."""
    wants = target.backend or _moves_to(have, target)
    if any_cpu and wants == CPU and have.backend in ON_CPUS:
        wants = have.backend
    sm = target.sm if target.sm in have.sms else have.sm
    exact = have.release and target.release and have.line == target.line
    return {
        "back end": (have.backend, wants),
        "SM": (None if have.backend in ON_CPUS else sm, target.sm),
        "release line": (have.line, target.line),
        "release": (have.release, target.release) if exact else (None, None),
        **software_pairs(have, target),
    }


def _differences(
    folder: Path, built: Built, target: Target, pairs: Mapping[str, tuple[Any, Any]], command: str
) -> Iterator[Problem]:
    have, said = built.target, f"{_built_for(built.target, target)}, target has {target}"
    differing = {
        name: mine for name, (mine, theirs) in pairs.items() if theirs is not None and mine != theirs
    }
    hint = fix_of(command, have, target, differing)
    if (have.backend in ON_CPUS) != (target.backend in ON_CPUS):
        yield Problem(said, key="back end", file=str(folder), hint=hint)
        return
    if wrong := [name for name, mine in differing.items() if mine is not None]:
        yield Problem(said, key=" and ".join(wrong), file=str(folder), hint=hint)
    if unknown := [name for name, mine in differing.items() if mine is None]:
        message = f"does not say which {' and '.join(unknown)} it was built for; target has {target}"
        yield Problem(message, file=str(folder), hint=hint)


def _contradictions(folder: Path, have: Target) -> Iterator[Problem]:
    """Compare a manifest's release line with the engine's own word."""
    if have.release and have.line != release_facts(have.release).get("line"):
        message = f"the manifest says TensorRT-LLM {have.line}, the engine {have.release}"
        yield Problem(message, key="release line", file=str(folder), hint="build it again with --cache redo")


def _doubts(folder: Path, have: Target, target: Target, hint: str) -> Iterator[Problem]:
    """Yield warnings: what both sides do not say well enough to be sure."""

    def warning(message: str, fix: str = hint) -> Problem:
        return Problem(message, file=str(folder), hint=fix, severity=Severity.WARNING)

    if target.gpu and have.gpu and target.gpu != have.gpu and not have.sms:
        said = f"built for {have}, target has {target}"
        yield warning(f"{said}: it loads, with kernels that were chosen on another GPU")
    if target.release and not have.release:
        message = f"does not say which release of {have.line} built it, and only that one loads it"
        yield warning(f"{message}; target has {target.release}")
    if have.release and not target.release and target.line and Version(have.release).is_prerelease:
        message = f"built by the pre-release {have.release}, which no other release of {have.line} loads"
        yield warning(message, f"name the exact release: --against {have.release}")
    if have.image_digest and target.image_digest and have.image_digest != target.image_digest:
        yield warning(f"built in another image of {have.release or have.line}: {have.image_digest}")
    yield from map(warning, doubts(have, target))


def _built_for(have: Target, target: Target) -> str:
    """Return what an engine was built for, with the software below it where the target says some."""
    shown = replace(have, tensorrt=target.tensorrt and have.tensorrt, driver=target.driver and have.driver)
    return f"built for {shown}{' or newer' if shown.driver else ''}"


def _changes(have: Target, target: Target) -> dict[str, str]:
    """Return the contract's keys that have other values for the target; ``GPU`` stands for one that nobody named."""
    only_rtx = {"engine.targets": "null"} if have.sms else {}
    if target.backend == CPU:
        return {"engine.backend": CPU, "engine.gpu": "null", **only_rtx}
    moves = _moves_to(have, target)
    changes = {"engine.backend": moves, **only_rtx} if moves else {}
    if have.sms and target.sm and not moves:
        return {"engine.targets": str(sorted({*have.sms, target.sm}))}
    gpu = target.gpu or next((gpu.name for gpu in GPUS.values() if gpu.sm == target.sm), None)
    if gpu and (have.sm != target.sm or target.gpu):
        changes["engine.gpu"] = gpu
    elif moves and have.gpu is None:
        changes["engine.gpu"] = "GPU"
    if (line := line_for(target)) and (moves or have.backend in TRTLLM_BACKENDS):
        changes["engine.trtllm"] = line
    return changes


def _moves_to(have: Target, target: Target) -> str | None:
    """Return the back end that runs on the target's GPU with its software; None where the engine's own does."""
    loads = backend_for(target)
    if have.backend in ON_CPUS:
        return loads or TRTLLM_BACKENDS[0]
    if target.line and have.backend not in TRTLLM_BACKENDS:
        return TRTLLM_BACKENDS[0]
    is_other_product = loads != have.backend and RTX in {loads, have.backend} and have.backend in ON_GPUS
    return loads if is_other_product else None
