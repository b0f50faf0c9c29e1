"""TensorRT-LLM checkpoint and its source → Hugging Face folder, streamed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export.contents import Contents
from trtkit.checkpoint.hf_export.folder import check_free, copy_files, hf_config
from trtkit.checkpoint.hf_export.formats import find_format, quant_configs
from trtkit.checkpoint.hf_export.shards import MAX_SHARD_BYTES, write_shards
from trtkit.checkpoint.progress import Progress, silent
from trtkit.checkpoint.recipe import Recipe
from trtkit.checkpoint.staging import scratch_folder, staged_folder, write_json
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.checkpoint.trtllm_config import read_config
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.errors import ContractError, InputError

_NOT_IN_CHECKPOINT = {
    "tie_word_embeddings", "dtype", "bos_token_id", "eos_token_ids", "pad_token_id", "rotary_pct",
    "sliding_window_pattern", "kept",
}  # fmt: skip
"""Fields that a TensorRT-LLM ``config.json`` does not tell."""


@dataclass(frozen=True)
class HfExportReport:
    """What an export wrote."""

    folder: Path
    files: int
    """Files of weights."""
    tensors: int
    bytes_written: int
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    folded_norms: int
    """Norms that took the activation scales of the layers after them; they are rounded to the data type again."""


def convert_to_hf(
    source: HfCheckpoint, out: Path, *, dtype: str, recipe: Recipe, progress: Progress = silent
) -> HfExportReport:
    """Convert into a scratch folder beside ``out``, export that, and leave only the export; all of it or nothing.

    Raises:
        InputError: The recipe's result cannot be exported, or the source does not fit; nothing was written.
        EnvironmentLacks: The disk is too full.
    """
    check_free(out)
    find_format(recipe.quantization, file="")
    with scratch_folder(out.resolve()) as scratch:
        folder = scratch / "checkpoint"
        convert(source, folder, dtype=dtype, recipe=recipe, progress=progress)
        return export_hf(TrtllmCheckpoint.open(folder), source, out, progress)


def export_hf(
    checkpoint: TrtllmCheckpoint,
    source: HfCheckpoint,
    out: Path,
    progress: Progress = silent,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> HfExportReport:
    """Write the checkpoint as a Hugging Face folder, with everything that is not in it from the source.

    Raises:
        InputError: The format cannot be exported, or checkpoint and source are of different models; nothing was
            written.
        EnvironmentLacks: The disk is too full.
    """
    check_free(out)
    _check_checkpoint(checkpoint, source)
    contents = Contents(checkpoint, source)
    tensors, quantization = contents.tensors(), contents.quantization
    with staged_folder(out) as staging:
        files = write_shards(staging, tensors, progress, max_shard_bytes)
        copy_files(source.folder, staging)
        _describe(staging, contents)
    return HfExportReport(
        out,
        files,
        len(tensors),
        sum(tensor.spec.nbytes for tensor in tensors),
        quantization["quant_algo"],
        quantization["kv_cache_quant_algo"],
        len(contents.scales),
    )


def _describe(folder: Path, contents: Contents) -> None:
    block = None
    if contents.quantization["quant_algo"] is not None:
        file, block = quant_configs(contents.quantization, contents.excluded())
        write_json(folder / "hf_quant_config.json", file)
    config = hf_config(contents.source.folder, dtype=contents.dtype, quantization=block)
    write_json(folder / CHECKPOINT_CONFIG, config)


def _check_checkpoint(checkpoint: TrtllmCheckpoint, source: HfCheckpoint) -> None:
    path = checkpoint.folder / CHECKPOINT_CONFIG
    if checkpoint.parallelism.world > 1:
        message = (
            f"is for {checkpoint.parallelism.world} ranks; programs that read the export divide it themselves"
        )
        raise InputError(message, path=path, hint="convert for one rank: no --tp, no --pp")
    find_format(checkpoint.config.get("quantization") or {}, file=str(path))
    if problems := verify(checkpoint.folder):
        raise ContractError(problems)
    built = read_config(checkpoint.config, path=path)
    if differing := _differences(built, source.config):
        message = f"was not made from {source.folder}: {', '.join(differing)} differ"
        raise InputError(message, path=path, hint="give the source that it was converted from")


def _differences(one: ModelConfig, other: ModelConfig) -> list[str]:
    names = [field.name for field in fields(ModelConfig) if field.name not in _NOT_IN_CHECKPOINT]
    return [name for name in names if getattr(one, name) != getattr(other, name)]
