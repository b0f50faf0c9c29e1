"""Hugging Face folder → TensorRT-LLM checkpoint, streamed: memory does not grow with the model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from trtkit.checkpoint.cast import cast_chunks
from trtkit.checkpoint.condense import condense
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.mapping import MappedTensor, map_tensors, tied_copies
from trtkit.checkpoint.progress import Progress, silent
from trtkit.checkpoint.safetensors import Array, SafetensorsWriter, TensorInfo, TensorSpec
from trtkit.checkpoint.staging import staged_folder, write_json
from trtkit.checkpoint.trtllm_config import DTYPES, write_config
from trtkit.conventions import CHECKPOINT_CONFIG, MANIFEST, rank_file
from trtkit.errors import ContractError, EnvironmentLacks, InputError, Problem
from trtkit.plan.types import QuantPlan

WEIGHT_ONLY = "W8A16"
_ALGORITHMS = (None, WEIGHT_ONLY)
_WEIGHT_ONLY_MULTIPLE = 64
"""Both sides of a weight-only layer; TensorRT-LLM pads others by itself and then finds their shapes wrong."""

_PADDING = ", or pad the gated MLP (intermediate_size) with zeros in the source"


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion wrote."""

    folder: Path
    tensors: int
    bytes_written: int
    tied_embeddings: bool
    """Whether ``lm_head.weight`` is a copy of the embedding; the engine shares them again."""


def convert(
    source: HfCheckpoint,
    out: Path,
    *,
    dtype: str,
    quantization: QuantPlan,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    progress: Progress = silent,
) -> ConversionReport:
    """Write ``config.json`` and ``rank0.safetensors`` to ``out``; all of it or nothing.

    INT8 weight-only keeps the plain weights and names the algorithm: TensorRT-LLM quantizes when it builds, in the
    layout of the GPU at hand.

    Raises:
        InputError: The source does not fit the request; nothing was written, and an older ``out`` is untouched.
        EnvironmentLacks: The disk is too full.
    """
    _check_request(dtype, quantization, tensor_parallel, pipeline_parallel)
    _check_target(out, source.folder)
    mapped = map_tensors(source.config, source.tensors, file=str(source.folder))
    _check_tied(source)
    if quantization.quant_algo == WEIGHT_ONLY:
        _check_multiples(mapped, source.folder)
    by_name = {tensor.target.name: tensor for tensor in mapped}
    specs = [TensorSpec(name, dtype, tensor.target.shape) for name, tensor in by_name.items()]
    _check_space(out, sum(spec.nbytes for spec in specs))
    with staged_folder(out) as staging:
        with SafetensorsWriter(staging / rank_file(0), specs) as writer:
            _write_tensors(writer, by_name, progress)
        write_json(
            staging / CHECKPOINT_CONFIG, write_config(source.config, dtype=dtype, quantization=quantization)
        )
    return ConversionReport(out, len(specs), writer.nbytes, source.config.tie_word_embeddings)


def _write_tensors(writer: SafetensorsWriter, by_name: dict[str, MappedTensor], progress: Progress) -> None:
    done, total = 0, writer.nbytes
    for spec in writer.order:
        writer.write(spec, _rows(by_name[spec.name].sources, spec.dtype))
        done += spec.nbytes
        progress("convert", done, total)


def _rows(sources: Sequence[TensorInfo], dtype: str) -> Iterator[Array]:
    for source in sources:
        yield from cast_chunks(source, dtype)


def _check_request(dtype: str, quantization: QuantPlan, tensor_parallel: int, pipeline_parallel: int) -> None:
    if dtype not in DTYPES:
        raise InputError(f"checkpoints are {', '.join(DTYPES)}, not {dtype!r}")
    for name, ranks in (("tensor_parallel", tensor_parallel), ("pipeline_parallel", pipeline_parallel)):
        if ranks != 1:
            raise InputError(
                f"{name} is {ranks}; this release writes checkpoints for one GPU", hint=f"set {name}: 1"
            )
    if quantization.quant_algo not in _ALGORITHMS:
        message = f"this release does not write {quantization.weights!r} weights ({quantization.quant_algo})"
        raise InputError(message, hint="use none or int8-wo")
    if quantization.kv_cache_quant_algo is not None:
        raise InputError(f"this release does not write a {quantization.kv_cache!r} KV cache", hint="use auto")


def _check_target(out: Path, source: Path) -> None:
    """Refuse to replace anything that is not a checkpoint of ours."""
    target = out.resolve()
    if target == source.resolve() or target in source.resolve().parents:
        raise InputError("would replace the source", path=out, hint="choose another folder")
    if out.exists() and not out.is_dir():
        raise InputError("is a file", path=out, hint="choose another folder")
    ours = (CHECKPOINT_CONFIG, MANIFEST, "rank*.safetensors")
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    others = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in ours)]
    if others:
        message = f"holds other files ({', '.join(others[:5])}), which would be lost"
        raise InputError(message, path=out, hint="choose another folder, or empty this one")


def _check_tied(source: HfCheckpoint) -> None:
    for name, original in tied_copies(source.config).items():
        if name in source.tensors and not _equal(source.tensors[name], source.tensors[original]):
            message = f"tie_word_embeddings is true, but {name} differs from {original}"
            hint = "set tie_word_embeddings to false in config.json to keep both"
            raise InputError(message, path=source.folder, hint=hint)


def _equal(one: TensorInfo, other: TensorInfo) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return all(np.array_equal(a, b) for a, b in zip(one.chunks(), other.chunks(), strict=True))


def _check_multiples(mapped: Sequence[MappedTensor], folder: Path) -> None:
    multiple = _WEIGHT_ONLY_MULTIPLE
    problems = [
        Problem(
            f"INT8 weight-only needs both sides to be multiples of {multiple}, the layer is "
            f"{tensor.target.shape[0]} x {tensor.target.shape[1]}",
            key=tensor.target.name,
            hint="use weights: none" + (_PADDING if ".mlp." in tensor.target.name else ""),
        )
        for tensor in mapped
        if tensor.target.rule.is_linear and any(side % multiple for side in tensor.target.shape)
    ]
    if problems:
        raise ContractError(condense(problems, file=str(folder)))


def _check_space(out: Path, needed_bytes: int) -> None:
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes > free_bytes:
        message = f"the checkpoint takes {needed_bytes:,} bytes and {free_bytes:,} are free"
        raise EnvironmentLacks(message, path=out, hint="free space, or write to another disk")
