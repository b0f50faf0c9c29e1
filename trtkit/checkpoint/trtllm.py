"""TensorRT-LLM checkpoints: open them, and verify them from their headers and scales."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.catalog.schemes import BAKED, FOREIGN, KV_CACHE_SCALE, MODEL_DTYPE, SCHEMES
from trtkit.checkpoint.condense import condense
from trtkit.checkpoint.expected import expected_tensors
from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.jobs import Layout, Target
from trtkit.checkpoint.json_object import section
from trtkit.checkpoint.layer_blocks import Blocks, block_of, layer_block_problems, read_layer_blocks
from trtkit.checkpoint.mapping import check_layers
from trtkit.checkpoint.rank_files import rank_metadata
from trtkit.checkpoint.safetensors import Array, TensorInfo, read_header, read_metadata
from trtkit.checkpoint.scale_values import scale_problems
from trtkit.checkpoint.trtllm_blocks import block_problems
from trtkit.checkpoint.trtllm_config import read_config, read_mapping
from trtkit.checkpoint.trtllm_keys import key_problems
from trtkit.conventions import CHECKPOINT_CONFIG, rank_file
from trtkit.errors import ContractError, InputError, Problem, Severity
from trtkit.plan.layers import HEAD, linear_modules, tables_of
from trtkit.plan.parallel import parallel_problems

_T = TypeVar("_T")
_BUFFERS = ("embed_positions*", "rotary_inv_freq*")
"""Tables that some versions of TensorRT-LLM's converter add and its loader computes again."""


@dataclass(frozen=True)
class TrtllmCheckpoint:
    """An opened checkpoint; tensors are described, not loaded."""

    folder: Path
    config: Mapping[str, Any]
    parallelism: Parallelism
    ranks: tuple[Mapping[str, TensorInfo], ...]
    """Tensors of each rank by name."""
    layers: Blocks = field(default_factory=dict)
    """Quantization of single layers, where they have formats of their own."""

    @classmethod
    def open(cls, folder: Path, config: Mapping[str, Any] | None = None) -> TrtllmCheckpoint:
        """Read configuration, or take another one for it, and headers.

        Raises:
            InputError: A file is missing or damaged.
        """
        config = read_json(folder / CHECKPOINT_CONFIG) if config is None else config
        parallelism = read_mapping(config, path=folder / CHECKPOINT_CONFIG)
        ranks = tuple(read_header(folder / rank_file(rank)) for rank in range(parallelism.world))
        return cls(
            folder, config, parallelism, ranks, read_layer_blocks(folder, section(config, "quantization"))
        )

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors of the first rank; all of them when there is only one."""
        return self.ranks[0]

    def block_of(self, module: str) -> Mapping[str, Any]:
        """Return the ``quantization`` block that holds for one layer, as a rank's files name it."""
        return block_of(section(self.config, "quantization"), self.layers, module)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the first rank's tensors."""
        return tuple(self.tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def info(self, name: str, rank: int = 0) -> TensorInfo:
        """Return a tensor's data type, shape and place.

        Raises:
            InputError: There is no such tensor.
        """
        if name not in self.ranks[rank]:
            raise InputError(f"there is no tensor {name}", path=self.folder, hint="run `trtkit verify` on it")
        return self.ranks[rank][name]

    def tensor(self, name: str, rank: int = 0) -> Array:
        """Return a read-only view of a tensor (bfloat16 as ``ml_dtypes.bfloat16``)."""
        return self.info(name, rank).read()


def verify(folder: Path) -> list[Problem]:
    """Compare names, shapes, data types and scales with what ``config.json`` asks for; no weights are read."""
    return _verify(folder, None, linear=True)


def verify_any(folder: Path) -> list[Problem]:
    """Do the same for algorithms that trtkit does not write too, as far as it knows their tensors.

    Raises:
        InputError: There is no ``config.json``, or it is none.
    """
    config = read_json(folder / CHECKPOINT_CONFIG)
    quantization = section(config, "quantization")
    name = quantization.get("quant_algo")
    if not isinstance(name, str) or name not in FOREIGN:
        return verify(folder)
    twin = FOREIGN[name]
    alike = {**config, "quantization": {**quantization, "quant_algo": twin}}
    problems = _verify(folder, alike, linear=twin is not None)
    if twin is None:
        message = f"nothing is known of the tensors of {name} layers: only the others were compared"
        key, file, hint = (
            "quantization.quant_algo",
            str(folder / CHECKPOINT_CONFIG),
            "build an engine of it and ask that",
        )
        problems.append(Problem(message, key, hint, file, severity=Severity.WARNING))
    return problems


def _verify(folder: Path, config_json: Mapping[str, Any] | None, *, linear: bool) -> list[Problem]:
    try:
        _check_blocks(folder / CHECKPOINT_CONFIG, config_json)
        checkpoint = TrtllmCheckpoint.open(folder, config_json)
        config = _model(checkpoint)
        expected = _expected(checkpoint, config)
        skipped = frozenset() if linear else frozenset({HEAD, *linear_modules(config)})
        misplaced = list(_misplaced_ranks(checkpoint))
    except ContractError as error:
        return list(error.problems)
    except InputError as error:
        return [Problem(error.message, hint=error.hint, file=error.path or str(folder))]
    problems = []
    for rank, tensors in enumerate(checkpoint.ranks):
        kept = _without(tensors, skipped)
        found = _tensor_problems(_without(expected.get(rank, {}), skipped), kept) or list(
            scale_problems(kept)
        )
        problems += condense(found, file=str(folder / rank_file(rank)))
    return [*problems, *misplaced, *_extra_ranks(checkpoint)]


def model_problems(checkpoint: TrtllmCheckpoint, model: ModelConfig) -> list[Problem]:
    """Return what the model lacks in a checkpoint that holds other tensors beside it, or holds in another shape.

    Integer weights may be in the layout of one GPU family, which has shapes of its own.
    """
    expected, problems = _expected(checkpoint, model), []
    for rank, tensors in enumerate(checkpoint.ranks):
        wanted = {
            name: each
            for name, each in expected.get(rank, {}).items()
            if name not in tensors or not tensors[name].dtype.startswith("int")
        }
        found = _tensor_problems(wanted, {name: each for name, each in tensors.items() if name in wanted})
        problems += condense(found, file=str(checkpoint.folder / rank_file(rank)))
    return problems


def loader_warnings(folder: Path) -> list[Problem]:
    """Return what only some versions of TensorRT-LLM load.

    Raises:
        InputError: There is no ``config.json``, or it is none.
    """
    path = folder / CHECKPOINT_CONFIG
    return [
        replace(problem, file=str(path))
        for problem in block_problems(read_json(path))
        if problem.severity is Severity.WARNING
    ]


def _without(tensors: Mapping[str, _T], modules: Container[str]) -> dict[str, _T]:
    """Leave out the tensors of some layers, by their names."""
    return {name: each for name, each in tensors.items() if name.rpartition(".")[0] not in modules}


def _check_blocks(path: Path, config: Mapping[str, Any] | None) -> None:
    """Raise what is wrong with blocks that tensors follow from."""
    config = read_json(path) if config is None else config
    problems = [replace(problem, file=str(path)) for problem in block_problems(config)]
    if errors := [problem for problem in problems if problem.severity is Severity.ERROR]:
        raise ContractError(errors)


def _model(checkpoint: TrtllmCheckpoint) -> ModelConfig:
    path = checkpoint.folder / CHECKPOINT_CONFIG
    name = checkpoint.config.get("architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise InputError(
            f"the architecture {name!r} is not supported", path=path, hint=f"supported: {supported}"
        )
    config = read_config(checkpoint.config, path=path)
    check_layers(config, checkpoint.tensors, file=str(path))
    problems = parallel_problems(config, checkpoint.parallelism) or key_problems(checkpoint.config, config)
    problems = problems or list(
        layer_block_problems(
            section(checkpoint.config, "quantization"),
            checkpoint.layers,
            linear_modules(config),
            tables_of(config),
        )
    )
    if problems:
        raise ContractError([replace(problem, file=str(path)) for problem in problems])
    return config


@dataclass(frozen=True)
class _Wanted:
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


def _expected(checkpoint: TrtllmCheckpoint, config: ModelConfig) -> dict[int, dict[str, _Wanted]]:
    """Return what each rank has to hold."""
    quantization = section(checkpoint.config, "quantization")
    schemes = {**SCHEMES, **BAKED} if section(checkpoint.config, "trtkit").get("layout") else SCHEMES
    layout = Layout(config, config.dtype, checkpoint.parallelism)
    wanted: dict[int, dict[str, _Wanted]] = {rank: {} for rank in range(checkpoint.parallelism.world)}

    def want(target: Target, dtypes: tuple[str, ...] = ()) -> None:
        for tp_rank, shard in enumerate(target.shards):
            rank = target.stage * checkpoint.parallelism.tp + tp_rank
            accepted = tuple(config.dtype if name == MODEL_DTYPE else name for name in dtypes)
            wanted[rank][target.name] = _Wanted(shard.shape, accepted or (target.dtype,))

    for tensor in expected_tensors(config):
        whole = layout.whole(tensor)
        block = checkpoint.block_of(whole.name.removesuffix(".weight"))
        if not (tensor.rule.is_linear or (tensor.name == f"{HEAD}.weight" and block.get("quant_algo"))):
            want(whole)
            continue
        for part in schemes[block.get("quant_algo")].parts:
            if part.applies(tensor.name, block):
                want(layout.part(tensor, part, block.get("group_size") or 1), part.dtypes)
    kv_parts = (KV_CACHE_SCALE,) if quantization.get("kv_cache_quant_algo") else ()
    layer_parts = schemes.get(quantization.get("quant_algo"), SCHEMES[None]).layer_parts
    for layer in range(config.num_layers):
        for layer_part in (*layer_parts, *kv_parts):
            if layer_part.applies(quantization):
                want(layout.layer_part(layer, layer_part), layer_part.dtypes)
    return wanted


def _tensor_problems(expected: Mapping[str, _Wanted], tensors: Mapping[str, TensorInfo]) -> list[Problem]:
    problems = [Problem("the tensor is missing", key=name) for name in expected if name not in tensors]
    for name, info in tensors.items():
        if any(fnmatchcase(name, pattern) for pattern in _BUFFERS):
            continue
        if name not in expected:
            problems.append(Problem("the tensor is none of this architecture's", key=name))
        else:
            problems += _differences(info, expected[name])
    return problems


def _differences(info: TensorInfo, wanted: _Wanted) -> list[Problem]:
    if info.dtype == "int8" and info.name.endswith(".weight") and "int8" not in wanted.dtypes:
        message = "holds weights in the layout of one GPU family, not the portable form"
        return [Problem(message, key=info.name, hint="convert the source again with trtkit")]
    problems = []
    if info.shape != wanted.shape:
        message = f"shape is {list(info.shape)}, config.json asks for {list(wanted.shape)}"
        problems.append(Problem(message, key=info.name))
    if info.dtype not in wanted.dtypes:
        message = f"data type is {info.dtype}, config.json says {' or '.join(wanted.dtypes)}"
        problems.append(Problem(message, key=info.name))
    return problems


def _misplaced_ranks(checkpoint: TrtllmCheckpoint) -> Iterator[Problem]:
    """Find files with another rank's weights, as far as they say whose they are: shapes are all alike."""
    world = checkpoint.parallelism.world
    for rank in range(world):
        path = checkpoint.folder / rank_file(rank)
        wanted, found = rank_metadata(rank, world), read_metadata(path)
        if {**wanted, **found} != {**found, **wanted}:
            message = f"says that it is rank {found.get('rank')} of {found.get('world_size')}, not {rank} of {world}"
            yield Problem(message, file=str(path), hint="convert the source again")


def _extra_ranks(checkpoint: TrtllmCheckpoint) -> list[Problem]:
    known = {rank_file(rank) for rank in range(checkpoint.parallelism.world)}
    extra = sorted(path.name for path in checkpoint.folder.glob(rank_file("*")) if path.name not in known)
    message = (
        f"config.json is for {checkpoint.parallelism.world} rank(s), the file belongs to another conversion"
    )
    return [Problem(message, file=str(checkpoint.folder / name), hint="remove it") for name in extra]
