"""Hugging Face folders: plain ones, and those that any tool has quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import HfCheckpoint, read_json
from trtkit.checkpoint.mapping import map_tensors
from trtkit.checkpoint.storage import find_storage
from trtkit.checkpoint.storage.quantized import Quantized
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.errors import ContractError, InputError, Problem
from trtkit.flow.inspect.description import read_description
from trtkit.flow.inspect.finding import Finding, Kind
from trtkit.flow.inspect.headers import Headers, read_headers
from trtkit.flow.inspect.model import geometry, kv_bytes_per_token, parameters_in, parameters_of
from trtkit.plan.hf_config import parse_hf_config

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")
_QUANT_CONFIG = "hf_quant_config.json"
_KV_ALGORITHMS = {"int8": "INT8", "fp8": "FP8"}


def inspect_hf(folder: Path) -> Finding:
    """Read ``config.json`` and the headers of all files of weights."""
    path = folder / CHECKPOINT_CONFIG
    config, problems = read_description(path)
    headers, missing = _headers(folder)
    weights, kv_cache, notes = _storage(config, folder)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.") or None
    parameters, sizes, more = _model(config, path) if config else (None, None, [])
    strange, doubled = _strange_files(folder, headers)
    found = (*problems, *missing, *headers.problems, *doubled)
    kv_bytes = kv_bytes_per_token(*sizes, dtype=dtype or "float32", kv_cache=kv_cache) if sizes else None
    return Finding(
        Kind.HUGGING_FACE,
        str(folder),
        made_by=_made_by(config, folder),
        architecture=_architecture(config),
        weights=weights,
        kv_cache=kv_cache,
        dtype=dtype,
        ranks=1,
        parameters=parameters or (None if weights else parameters_in(headers.dtypes)),
        kv_bytes_per_token=kv_bytes,
        dtypes=headers.dtypes,
        files=headers.files,
        notes=(*notes, *more, *strange),
        problems=found or tuple(_contradictions(folder)),
    )


def _headers(folder: Path) -> tuple[Headers, list[Problem]]:
    """Read the files that a conversion would, and find what is missing; a single file goes before an index."""
    paths = sorted(folder.glob("*.safetensors"))
    index = folder / _INDEX
    if (folder / _SINGLE).exists():
        return read_headers([folder / _SINGLE]), []
    if index.is_file():
        content, problems = read_description(index)
        weight_map = content.get("weight_map")
        if isinstance(weight_map, Mapping):
            return _sharded(folder, weight_map)
        return read_headers(paths), problems or [Problem("weight_map is missing", file=str(index))]
    return read_headers(paths), []


def _sharded(folder: Path, weight_map: Mapping[str, object]) -> tuple[Headers, list[Problem]]:
    named = {str(name) for name in weight_map.values()}
    headers = read_headers(path for path in sorted(folder.glob("*.safetensors")) if path.name in named)
    hint = "download the missing files"
    absent = sorted(named - headers.files.keys() - {Path(each.file).name for each in headers.problems})
    problems = [Problem("the file is missing", file=str(folder / name), hint=hint) for name in absent]
    # Without the files that hold them nothing can be said about tensors.
    lacking = [
        name for name, file in weight_map.items() if name not in headers.shapes and str(file) not in absent
    ]
    if lacking and not headers.problems:
        message = f"{len(lacking)} tensors are in no file, {lacking[0]} first"
        problems.append(Problem(message, file=str(folder / _INDEX), hint="fetch index and files again"))
    return headers, problems


def _strange_files(folder: Path, headers: Headers) -> tuple[list[str], list[Problem]]:
    """Return notes on files that are not read, and tensors that are in two files."""
    notes, problems = [], []
    others = sorted({path.name for path in folder.glob("*.safetensors")} - headers.files.keys())
    if others and headers.files:
        notes.append(f"not read: {', '.join(others)}; the model is in {', '.join(headers.files)}")
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not headers.files and not headers.problems:
        lies = f": {', '.join(pickles)} would run code when loaded" if pickles else ""
        notes.append(f"there are no weights that trtkit reads{lies}")
    counted = sum(amount.tensors for amount in headers.dtypes.values())
    if doubled := counted - len(headers.shapes):
        message = f"{doubled} tensors are in two files, of which nothing says which one counts"
        problems.append(Problem(message, file=str(folder), hint="remove what is not the model's"))
    return notes, problems


def _contradictions(folder: Path) -> list[Problem]:
    """Return where tensors are not those that ``config.json`` describes; what cannot be converted is told elsewhere."""
    try:
        source = HfCheckpoint.open(folder)
    except InputError:
        return []
    try:
        map_tensors(source.config, source.tensors, file=str(folder), storage=source.storage)
    except ContractError as error:
        first, *rest = error.problems
        more = f" (and {len(rest)} more, which `trtkit verify` lists)" if rest else ""
        return [replace(first, message=f"{first.message}{more}")]
    return []


def _model(
    config: Mapping[str, Any], path: Path
) -> tuple[int | None, tuple[int, int, int] | None, list[str]]:
    """Return parameters and the cache's sizes, and why trtkit could not convert it."""
    generation = path.with_name("generation_config.json")
    try:
        other = read_json(generation) if generation.is_file() else None
        model, _ = parse_hf_config(config, file=str(path), generation=other)
    except ContractError as error:
        reasons = (
            f"{problem.key}: {problem.message}" if problem.key else problem.message
            for problem in error.problems
        )
        return None, geometry(config), [f"trtkit does not convert it: {'; '.join(reasons)}"]
    except InputError as error:
        return None, geometry(config), [f"trtkit does not convert it: {error.message}"]
    return parameters_of(model), (model.num_layers, model.num_kv_heads, model.head_size), []


def _storage(config: Mapping[str, Any], folder: Path) -> tuple[str | None, str | None, list[str]]:
    """Return the formats of weights and KV cache; of a tool that trtkit does not read, the tool's own word."""
    path = folder / _QUANT_CONFIG
    extra = read_description(path)[0] if path.is_file() else None
    try:
        storage = find_storage(config, extra, file=str(folder / CHECKPOINT_CONFIG))
    except ContractError as error:
        block = config.get("quantization_config") or config.get("quantization") or {}
        method = block.get("quant_method", "unknown") if isinstance(block, Mapping) else block
        return (
            str(method),
            None,
            [f"trtkit does not read it: {problem.message}" for problem in error.problems],
        )
    if not isinstance(storage, Quantized):
        return None, None, []
    groups = f", groups of {storage.group_size}" if storage.group_size > 1 else ""
    return f"{storage.quant_algo}{groups}", _KV_ALGORITHMS.get(storage.kv_cache), []


def _made_by(config: Mapping[str, Any], folder: Path) -> str | None:
    extra = read_description(folder / _QUANT_CONFIG)[0] if (folder / _QUANT_CONFIG).is_file() else {}
    producer, block = extra.get("producer"), config.get("quantization_config")
    if isinstance(producer, Mapping):
        return " ".join(str(producer[key]) for key in ("name", "version") if producer.get(key)) or None
    if isinstance(block, Mapping) and block.get("quant_method"):
        return str(block["quant_method"])
    version = config.get("transformers_version")
    return f"transformers {version}" if version else None


def _architecture(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else None
