"""Engine folders: TensorRT-LLM's from whatever built them, and those of trtkit's other back ends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.errors import Problem
from trtkit.flow.inspect.description import read_description, read_origin
from trtkit.flow.inspect.finding import Amount, Finding, Kind
from trtkit.flow.inspect.graph import GRAPH_BACKENDS, inspect_graph
from trtkit.flow.inspect.trtllm import describe, rank_problems

_LIMITS = (
    "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width", "tokens_per_block",
    "kv_blocks", "enable_block_reuse", "kv_cache_type",
)  # fmt: skip
_BUILD_AGAIN = "build the engine again"
_OPENVINO = "openvino_model.xml"
_CONSTANT = re.compile(rb'<data element_type="(\w+)" shape="([\d, ]*)" offset="(\d+)" size="(\d+)"')
"""A constant of OpenVINO's IR; its bytes are in the file beside it."""


def rank_engine(rank: int | str) -> str:
    """Return TensorRT-LLM's name of one rank's engine."""
    return f"rank{rank}.engine"


def inspect_engine(folder: Path) -> Finding:
    """Read ``config.json``, the manifest and the sizes of files; an engine itself tells nothing without a GPU."""
    config, problems = read_description(folder / CHECKPOINT_CONFIG)
    origin, damage = read_origin(folder)
    backend = config.get("backend") or origin.get("built_for", {}).get("backend") or "tensorrt"
    version, build = config.get("version"), config.get("build_config")
    is_foreign = not config.get("backend")
    details = {
        "backend": backend,
        **({"trtllm": str(version)} if is_foreign and version else {}),
        **{key: build[key] for key in _LIMITS if isinstance(build, Mapping) and build.get(key) is not None},
        **origin,
    }
    found = Finding(Kind.ENGINE, str(folder), details=details, problems=(*problems, *damage))
    pretrained = config.get("pretrained_config")
    if isinstance(pretrained, Mapping):
        found = describe(pretrained, folder / CHECKPOINT_CONFIG, found)
    elif not problems:
        problem = Problem(
            "pretrained_config is missing", file=str(folder / CHECKPOINT_CONFIG), hint=_BUILD_AGAIN
        )
        found = replace(found, problems=(*found.problems, problem))
    if backend in GRAPH_BACKENDS:
        return inspect_graph(folder, found, config)
    return _openvino(folder, found) if backend == "cpu" else _ranks(folder, found)


def _ranks(folder: Path, found: Finding) -> Finding:
    """Compare the files of ranks with the number of ranks."""
    files = {path.name: path.stat().st_size for path in sorted(folder.glob(rank_engine("*")))}
    wanted = {rank_engine(rank) for rank in range(found.ranks or 0)} or set(files)
    problems = rank_problems(
        folder, found.ranks, sorted(wanted - files.keys()), sorted(files.keys() - wanted), hint=_BUILD_AGAIN
    )
    empty = [name for name, size in files.items() if size == 0]
    problems += [Problem("the file is empty", file=str(folder / name), hint=_BUILD_AGAIN) for name in empty]
    managed = {path.name: path.stat().st_size for path in folder.glob("rank*_managed_weights.safetensors")}
    return replace(found, files={**files, **managed}, problems=(*found.problems, *problems))


def _openvino(folder: Path, found: Finding) -> Finding:
    model, weights = folder / _OPENVINO, (folder / _OPENVINO).with_suffix(".bin")
    sizes = {path.name: path.stat().st_size for path in (model, weights) if path.is_file()}
    problems = [
        Problem("the file is missing", file=str(path), hint=_BUILD_AGAIN)
        for path in (model, weights)
        if path.name not in sizes
    ]
    constants = _constants(model.read_bytes()) if model.name in sizes else {}
    end = max((start + size for start, (_, _, size) in constants.items()), default=0)
    if weights.name in sizes and sizes[weights.name] < end:
        message = f"cut off: the model needs {end:,} bytes, the file has {sizes[weights.name]:,}"
        problems.append(Problem(message, file=str(weights), hint=_BUILD_AGAIN))
    dtypes: dict[str, Amount] = {}
    for dtype, elements, size in constants.values():
        dtypes[dtype] = dtypes.get(dtype, Amount()) + Amount(1, elements, size)
    return replace(found, dtypes=dtypes, files=sizes, problems=(*found.problems, *problems))


def _constants(text: bytes) -> dict[int, tuple[str, int, int]]:
    """Return type, elements and bytes of every constant by its place; equal ones share a place."""
    found = {}
    for dtype, shape, offset, size in _CONSTANT.findall(text):
        elements = 1
        for axis in filter(None, shape.replace(b" ", b"").split(b",")):
            elements *= int(axis)
        found[int(offset)] = (dtype.decode(), elements, int(size))
    return found


def engine_version(config: Mapping[str, Any]) -> str | None:
    """Return the version of TensorRT-LLM that an engine's ``config.json`` names; None for other back ends'."""
    version = config.get("version")
    return str(version) if version and not config.get("backend") else None
