"""TensorRT-LLM checkpoints, of any tool and any number of ranks; and the part of them that engines carry along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.json_object import section
from trtkit.checkpoint.trtllm_config import read_config, read_mapping
from trtkit.conventions import CHECKPOINT_CONFIG, rank_file
from trtkit.errors import InputError, Problem
from trtkit.flow.inspect.description import read_description
from trtkit.flow.inspect.finding import Finding, Kind
from trtkit.flow.inspect.headers import read_headers
from trtkit.flow.inspect.model import geometry, kv_bytes_per_token, parameters_in, parameters_of


def inspect_checkpoint(folder: Path) -> Finding:
    """Read ``config.json`` and the headers of all ranks."""
    config, problems = read_description(folder / CHECKPOINT_CONFIG)
    described = describe(config, folder / CHECKPOINT_CONFIG, Finding(Kind.CHECKPOINT, str(folder)))
    found = sorted(folder.glob(rank_file("*")), key=lambda path: (len(path.name), path.name))
    names = {rank_file(rank) for rank in range(described.ranks or 0)} or {path.name for path in found}
    headers = read_headers(path for path in found if path.name in names)
    missing = sorted(names - {path.name for path in found}, key=lambda name: (len(name), name))
    strays = [path.name for path in found if path.name not in names]
    problems += rank_problems(folder, described.ranks, missing, strays, hint="convert the source again")
    return replace(
        described,
        parameters=described.parameters or (parameters_in(headers.dtypes) if described.ranks == 1 else None),
        dtypes=headers.dtypes,
        files=headers.files,
        problems=(*described.problems, *problems, *headers.problems),
    )


def rank_problems(
    folder: Path, ranks: int | None, missing: list[str], strays: list[str], *, hint: str
) -> list[Problem]:
    """Name the files of ranks that are missing, and those that belong to another conversion or build."""
    told = f"config.json is for {ranks} rank{'s' if ranks != 1 else ''}"
    return [
        *(Problem(f"the file is missing; {told}", file=str(folder / name), hint=hint) for name in missing),
        *(Problem(f"left over; {told}", file=str(folder / name), hint="remove it") for name in strays),
    ]


def describe(config: Mapping[str, Any], path: Path, found: Finding) -> Finding:
    """Return the finding with what a checkpoint's configuration says."""
    quantization, producer = section(config, "quantization"), section(config, "producer")
    architecture, dtype = config.get("architecture"), str(config.get("dtype"))
    kv_cache = quantization.get("kv_cache_quant_algo")
    ranks, problems = _ranks(config, path)
    if config and not (isinstance(architecture, str) and architecture):
        problems.append(Problem("architecture is missing", file=str(path), hint="convert the source again"))
    made_by = " ".join(str(producer[key]) for key in ("name", "version") if producer.get(key))
    found = replace(
        found,
        made_by=made_by or found.made_by,
        architecture=architecture if isinstance(architecture, str) else None,
        weights=_format(quantization),
        kv_cache=str(kv_cache) if kv_cache else None,
        dtype=dtype if config.get("dtype") else None,
        ranks=ranks.world if ranks else None,
        details={**found.details, **_details(config, ranks)},
        problems=(*found.problems, *problems),
    )
    return _with_sizes(found, config, path, ranks or ONE_RANK)


def _with_sizes(found: Finding, config: Mapping[str, Any], path: Path, ranks: Parallelism) -> Finding:
    if found.architecture not in ARCHITECTURES:
        sizes = geometry({**config, "head_dim": config.get("head_size")})
        notes = [f"trtkit does not know the architecture {found.architecture}"] if found.architecture else []
        found = replace(found, notes=(*found.notes, *notes))
    else:
        try:
            model = read_config(config, path=path)
        except InputError as error:
            problem = Problem(error.message, file=str(path), hint=error.hint)
            return replace(found, problems=(*found.problems, problem))
        sizes = (model.num_layers, model.num_kv_heads, model.head_size)
        tied = config.get("tie_word_embeddings") is True
        found = replace(found, parameters=parameters_of(replace(model, tie_word_embeddings=tied)))
    if sizes is None:
        return found
    kv_bytes = kv_bytes_per_token(*sizes, dtype=found.dtype or "", kv_cache=found.kv_cache, ranks=ranks)
    return replace(found, kv_bytes_per_token=kv_bytes)


def _ranks(config: Mapping[str, Any], path: Path) -> tuple[Parallelism | None, list[Problem]]:
    try:
        return read_mapping(config, path=path), []
    except InputError as error:
        return None, [Problem(error.message, file=str(path), hint=error.hint)]


def _details(config: Mapping[str, Any], ranks: Parallelism | None) -> dict[str, Any]:
    baked = section(config, "trtkit")
    sizes = {"tp": ranks.tp, "pp": ranks.pp, "moe_ep": ranks.moe_ep} if ranks and ranks.world > 1 else {}
    return {**sizes, **{key: baked[key] for key in ("target_sm", "layout", "trtllm_version") if key in baked}}


def _format(quantization: Mapping[str, Any]) -> str | None:
    algorithm, group = quantization.get("quant_algo"), quantization.get("group_size")
    if not algorithm:
        return None
    return f"{algorithm}, groups of {group}" if group else str(algorithm)
