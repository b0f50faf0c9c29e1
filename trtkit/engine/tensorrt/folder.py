"""An engine folder as the builder left it: is it all there, and is it what was planned."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtkit.checkpoint.safetensors import read_header
from trtkit.conventions import CHECKPOINT_CONFIG, rank_file
from trtkit.engine.tensorrt.argv import target_of
from trtkit.engine.tensorrt.expected import differences
from trtkit.engine.tensorrt.job import Job
from trtkit.errors import InputError, StageError
from trtkit.plan.types import Plan

_LAYERS = "transformer.layers."
_STORED_PLAIN = {"W8A16": 0.5, "W4A16": 0.25}
"""Formats whose checkpoint has 16-bit weights that the builder quantizes: how much of them the engine holds."""
_LEAST_PART = 0.5
_EDGE_BYTES = 4096


def rank_engine(rank: int | str) -> str:
    """Return the name of one rank's engine."""
    return f"rank{rank}.engine"


def managed_weights(rank: int) -> str:
    """Return the name of the file beside one rank's engine that a fast build keeps its weights in."""
    return f"rank{rank}_managed_weights.safetensors"


def files_of(plan: Plan) -> tuple[str, ...]:
    """Return the files that every engine of a plan has."""
    target = target_of(plan)
    names = [rank_engine, *([managed_weights] if target.build_flags.get("fast_build") is True else [])]
    return (CHECKPOINT_CONFIG, *(name(rank) for name in names for rank in range(target.ranks.world)))


def check_engine(job: Job, folder: Path) -> dict[str, Any]:
    """Compare a folder with the plan and return facts about it; everything that is wrong is told at once.

    Raises:
        StageError: A rank is missing, cut off or too much, or the engine is not what was planned.
    """
    config = _read(folder / CHECKPOINT_CONFIG)
    planned = _read(job.checkpoint / CHECKPOINT_CONFIG)
    damaged = [*_rank_problems(job, folder), *_adapter_problems(job, folder)]
    differ = list(map(str, differences(job.plan, planned, config)))
    if damaged or differ:
        message = "the engine is not what was planned:" + "".join(f"\n  {each}" for each in damaged + differ)
        hint = "nothing of it was kept; read the builder's log"
        hint += ", and see whether disk or memory ran full" if damaged else ""
        hint += ", and set what it overrides to what it makes of it" if differ else ""
        raise StageError(message, hint=hint)
    ranks = range(target_of(job.plan).ranks.world)
    sizes = {rank_engine(rank): (folder / rank_engine(rank)).stat().st_size for rank in ranks}
    return {"trtllm": config["version"], "ranks": len(ranks), "engine_bytes": sum(sizes.values())}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"cannot be read: {error}"
        raise StageError(message, path=path, hint="read the builder's log") from error
    if not isinstance(content, Mapping):
        raise StageError("holds no object", path=path, hint="read the builder's log")
    return content


def _rank_problems(job: Job, folder: Path) -> Iterator[str]:
    wanted = [rank_engine(rank) for rank in range(target_of(job.plan).ranks.world)]
    found = {path.name for path in folder.glob(rank_engine("*"))}
    yield from (f"{name}: there is no such rank" for name in sorted(found - set(wanted)))
    for rank, name in enumerate(wanted):
        if name not in found:
            yield f"{name}: missing"
        elif problem := _damage(folder / name, _least_bytes(job, folder, rank)):
            yield f"{name}: {problem}"
        if managed_weights(rank) in files_of(job.plan) and (problem := _lack(folder / managed_weights(rank))):
            yield f"{managed_weights(rank)}: {problem}"


def _lack(path: Path) -> str:
    """Return why a file of managed weights cannot be whole: its header says how long it is."""
    try:
        return "" if read_header(path) else "holds no weights"
    except InputError as error:
        return error.message


def _adapter_problems(job: Job, folder: Path) -> Iterator[str]:
    for index in range(len(job.adapters)):
        path = folder / "lora" / str(index) / "adapter_config.json"
        if not path.is_file():
            yield f"{path.relative_to(folder)}: missing"


def _damage(path: Path, least_bytes: int) -> str:
    """Return why a rank's engine cannot be whole; nothing but TensorRT on the right GPU can tell that it is."""
    size = path.stat().st_size
    if size == 0:
        return "empty"
    if size < least_bytes:
        return f"cut off: it has {size:,} bytes, the weights of its layers alone have {least_bytes:,} or more"
    with path.open("rb") as file:
        head = file.read(_EDGE_BYTES)
        file.seek(max(0, size - _EDGE_BYTES))
        tail = file.read(_EDGE_BYTES)
    return "" if any(head) and any(tail) else "not written to its end: it has zeros there"


def _least_bytes(job: Job, folder: Path, rank: int) -> int:
    """Return half of what the rank's layers weigh; 0 for an engine that has its weights elsewhere."""
    flags = target_of(job.plan).build_flags
    if folder != job.out or flags.get("fast_build") is True:
        return 0
    header = read_header(job.checkpoint / rank_file(rank))
    layers = sum(info.nbytes for name, info in header.items() if name.startswith(_LAYERS))
    return int(layers * _LEAST_PART * _STORED_PLAIN.get(job.plan.quantization.quant_algo or "", 1.0))
