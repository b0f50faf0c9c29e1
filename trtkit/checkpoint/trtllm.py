"""TensorRT-LLM checkpoints: open them, and verify them from their headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.checkpoint.condense import condense
from trtkit.checkpoint.convert import WEIGHT_ONLY
from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.mapping import ExpectedTensor, check_layers, expected_tensors
from trtkit.checkpoint.safetensors import Array, TensorInfo, read_header
from trtkit.checkpoint.trtllm_config import read_config
from trtkit.conventions import CHECKPOINT_CONFIG, rank_file
from trtkit.errors import ContractError, InputError, Problem
from trtkit.plan.model import ModelConfig

_BUFFERS = ("embed_positions*", "rotary_inv_freq*")
"""Tables that some versions of TensorRT-LLM's converter add and its loader computes again."""


@dataclass(frozen=True)
class TrtllmCheckpoint:
    """An opened checkpoint of one rank; tensors are described, not loaded."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, folder: Path) -> TrtllmCheckpoint:
        """Read configuration and header.

        Raises:
            InputError: A file is missing or damaged, or there is more than one rank.
        """
        config = read_json(folder / CHECKPOINT_CONFIG)
        ranks = _section(config, "mapping").get("world_size", 1)
        if ranks != 1:
            raise InputError(
                f"the checkpoint is for {ranks} GPUs; this release reads those for one", path=folder
            )
        return cls(folder, config, read_header(folder / rank_file(0)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return tuple(self.tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's data type, shape and place.

        Raises:
            InputError: There is no such tensor.
        """
        if name not in self.tensors:
            raise InputError(f"there is no tensor {name}", path=self.folder, hint="run `trtkit verify` on it")
        return self.tensors[name]

    def tensor(self, name: str) -> Array:
        """Return a read-only view of a tensor (bfloat16 as ``ml_dtypes.bfloat16``)."""
        return self.info(name).read()


def verify(folder: Path) -> list[Problem]:
    """Compare names, shapes and data types with what ``config.json`` asks for; reads headers only."""
    try:
        checkpoint = TrtllmCheckpoint.open(folder)
        config = _model(checkpoint)
        check_layers(config, checkpoint.tensors, file=str(folder / CHECKPOINT_CONFIG))
    except ContractError as error:
        return list(error.problems)
    except InputError as error:
        return [Problem(error.message, hint=error.hint, file=error.path or str(folder))]
    return condense(_tensor_problems(checkpoint, config), file=str(folder / rank_file(0)))


def _model(checkpoint: TrtllmCheckpoint) -> ModelConfig:
    path = checkpoint.folder / CHECKPOINT_CONFIG
    name = checkpoint.config.get("architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise InputError(
            f"the architecture {name!r} is not supported", path=path, hint=f"supported: {supported}"
        )
    algorithm = _section(checkpoint.config, "quantization").get("quant_algo")
    if algorithm not in (None, WEIGHT_ONLY):
        raise InputError(f"this release cannot verify {algorithm} checkpoints", path=path)
    return read_config(checkpoint.config, path=path)


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = config.get(key)
    return section if isinstance(section, Mapping) else {}


def _tensor_problems(checkpoint: TrtllmCheckpoint, config: ModelConfig) -> list[Problem]:
    expected = {tensor.name: tensor for tensor in expected_tensors(config)}
    problems = [
        Problem("the tensor is missing", key=name) for name in expected if name not in checkpoint.tensors
    ]
    for name, info in checkpoint.tensors.items():
        if any(fnmatchcase(name, pattern) for pattern in _BUFFERS):
            continue
        if name not in expected:
            problems.append(Problem("the tensor is none of this architecture's", key=name))
        else:
            problems += _differences(info, expected[name], config.dtype)
    return problems


def _differences(info: TensorInfo, expected: ExpectedTensor, dtype: str) -> list[Problem]:
    if info.dtype == "int8" and expected.rule.is_linear:
        message = "holds weights in the layout of one GPU family, not the portable form"
        return [Problem(message, key=info.name, hint="convert the source again with trtkit")]
    problems = []
    if info.shape != expected.shape:
        message = f"shape is {list(info.shape)}, config.json asks for {list(expected.shape)}"
        problems.append(Problem(message, key=info.name))
    if info.dtype != dtype:
        message = f"data type is {info.dtype}, config.json says {dtype}"
        problems.append(Problem(message, key=info.name))
    return problems
