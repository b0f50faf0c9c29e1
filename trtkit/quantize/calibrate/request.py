"""What is asked of a calibration, and what the file says of how it was made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtkit.catalog.parallel import ONE_RANK
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import ContractError, InputError, Problem
from trtkit.plan.preflight.ranks import untiled
from trtkit.quantize.calibrate.data import Data
from trtkit.quantize.calibrate.layers import LinearGroup, ModelLayers
from trtkit.quantize.calibrate.purpose import Purpose, Unreached
from trtkit.quantize.calibrate.samples import SampleSet
from trtkit.quantize.digest import EXCERPT, NUMERICS, excerpt_digest, numerics, weights_digest
from trtkit.quantize.fingerprint import FINGERPRINT


@dataclass(frozen=True)
class Request:
    """Options of one calibration."""

    data: Data = field(default_factory=Data)
    purpose: Purpose = Purpose.RANGES
    samples: int = 128
    max_tokens: int = 512
    seed: int = 0
    group_size: int | None = None
    """Input columns that share an INT4 scale; None for the largest of 128 and 64 that fits."""
    unreached: Unreached = Unreached.ABORT


def check_settings(request: Request, layers: ModelLayers) -> None:
    """Refuse settings that would have no effect.

    Raises:
        InputError: There are some.
    """
    if request.group_size is not None and not request.purpose.is_int4:
        message = f"a group size of {request.group_size} is for INT4 weights, and none are asked for"
        raise InputError(message, hint="leave --group-size out, or say what --for")
    if request.data.path is None and request.data.column != Data.column:
        message = f"the built-in text has no field {request.data.column!r}"
        raise InputError(message, hint="leave --column out, or name --data")
    if request.unreached is Unreached.BORROW and not layers.config.moe:
        message = f"{layers.config.architecture} has no experts that could borrow ranges"
        raise InputError(message, hint="leave --unreached out")


def choose_group(request: Request, layers: ModelLayers) -> int | None:
    """Return the group size of INT4, None without it.

    Raises:
        ContractError: Layers cannot be divided so, or are experts.
    """
    if not request.purpose.is_int4:
        return None
    if layers.config.moe:
        hint = "use fp8 or int8-wo"
        message = f"TensorRT-LLM has no experts with {request.purpose.value} weights"
        raise ContractError([Problem(message, key=layers.config.architecture, hint=hint)])
    allowed = (128,) if request.purpose is Purpose.W4A8_AWQ else (128, 64)
    if request.group_size is not None and request.group_size not in allowed:
        message = f"{request.purpose.value} has groups of {' or '.join(map(str, allowed))} columns"
        raise InputError(f"{message}, not of {request.group_size}", hint=f"--group-size {allowed[0]}")
    groups = layers.groups(0)
    sizes = (request.group_size,) if request.group_size else allowed
    fitting = [size for size in sizes if not any(_misfits(groups, size))]
    if fitting:
        # Checkpoints are laid out in tiles as large as a group, rows too; where none fits, some layers may stay plain.
        return next((size for size in fitting if not untiled(layers.config, ONE_RANK, size)), fitting[0])
    others = [size for size in allowed if not any(_misfits(groups, size))]
    hint = f"use --group-size {others[0]}" if others else "use int8-wo or fp8 weights"
    problems = [
        _side_problem(group, sizes[-1], hint) for group in groups if any(_misfits([group], sizes[-1]))
    ]
    raise ContractError(problems)


def _misfits(groups: list[LinearGroup], size: int) -> list[bool]:
    return [bool(group.width % size) for group in groups]


def _side_problem(group: LinearGroup, size: int, hint: str) -> Problem:
    message = f"reads {group.width} channels, which are no multiple of a group of {size}"
    return Problem(message, key=group.names[0], hint=hint)


def describe(
    source: HfCheckpoint, layers: ModelLayers, request: Request, samples: SampleSet, group_size: int | None
) -> Mapping[str, Any]:
    """Return what the file says of itself; what decides its numbers is in it."""
    import torch
    import transformers

    import trtkit

    ids = hashlib.sha256()
    for sample in samples.samples:
        ids.update(len(sample.ids).to_bytes(8, "little") + sample.ids.tobytes())
    return {
        "schema": 1,
        "weights_sha256": weights_digest(layers.mapped),
        EXCERPT: excerpt_digest(layers.mapped),
        NUMERICS: numerics(source.config),
        "config_sha256": hashlib.sha256((source.folder / "config.json").read_bytes()).hexdigest(),
        "architecture": source.config.architecture,
        "for": request.purpose.value,
        "group_size": group_size,
        "data": samples.description,
        "samples_asked": samples.asked,
        "samples_used": samples.used,
        "texts_skipped": samples.skipped,
        "tokens": samples.tokens,
        "tokens_sha256": ids.hexdigest(),
        FINGERPRINT: samples.fingerprint.spelled(),
        "max_length": request.max_tokens,
        "seed": request.seed,
        "unreached": request.unreached.value,
        "trtkit": trtkit.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
