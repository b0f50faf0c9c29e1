"""Hugging Face folder → TensorRT-LLM checkpoint, streamed: memory does not grow with the model."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.condense import condense
from trtkit.checkpoint.hf import HfCheckpoint, read_json
from trtkit.checkpoint.jobs import Job, Layout, Target
from trtkit.checkpoint.layer_blocks import QUANT_CFG, write_layer_blocks
from trtkit.checkpoint.mapping import MappedTensor, map_tensors, tied_copies
from trtkit.checkpoint.progress import Progress, silent
from trtkit.checkpoint.rank_files import RankFiles
from trtkit.checkpoint.recipe import Baking, ByLayer, Recipe
from trtkit.checkpoint.safetensors import TensorInfo, TensorSpec
from trtkit.checkpoint.staging import contents, staged_folder, staging_place, write_json
from trtkit.checkpoint.trtllm_config import DTYPES, write_config
from trtkit.conventions import CHECKPOINT_CONFIG, MANIFEST
from trtkit.errors import ContractError, EnvironmentLacks, InputError
from trtkit.plan.parallel import parallel_problems

_OURS = re.compile(
    rf"{re.escape(CHECKPOINT_CONFIG)}|{re.escape(QUANT_CFG)}|{re.escape(MANIFEST)}|rank\d+\.safetensors"
)


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion wrote."""

    folder: Path
    tensors: int
    """Tensors of the model, whatever the number of ranks that hold them."""
    ranks: int
    bytes_written: int
    tied_embeddings: bool
    """Whether ``lm_head.weight`` is a copy of the embedding; the engine shares them again."""


@dataclass(frozen=True)
class Conversion:
    """A conversion that has been checked: all that is left is to run it."""

    source: HfCheckpoint
    recipe: Recipe
    layout: Layout
    jobs: Sequence[Job]
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What ``config.json`` keeps of how it was made, beside what weights are laid out for."""

    @property
    def targets(self) -> list[Target]:
        """Every tensor that will be written."""
        return [target for job in self.jobs for target in job.targets]

    def bytes_per_rank(self) -> list[int]:
        """Return the size of each rank's tensors."""
        sizes, tp = [0] * self.layout.ranks.world, self.layout.ranks.tp
        for target in self.targets:
            for tp_rank, shard in enumerate(target.shards):
                spec = TensorSpec(target.name, target.dtype, shard.shape)
                sizes[target.stage * tp + tp_rank] += spec.nbytes
        return sizes

    def config(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        layout = self.layout
        baked = self.recipe.baked_for if isinstance(self.recipe, Baking) else {}
        content = write_config(
            layout.config, dtype=layout.dtype, quantization=self.recipe.quantization, parallelism=layout.ranks
        )
        # Loaders take unknown keys at the top level with a warning.
        return {**content, "trtkit": own} if (own := {**baked, **self.notes}) else content

    def layers(self) -> dict[str, Any]:
        """Return the content of ``quant_cfg.json``; empty where there is none."""
        layers = self.recipe.layer_blocks if isinstance(self.recipe, ByLayer) else {}
        return write_layer_blocks(self.recipe.quantization, layers) if layers else {}

    def check(self, out: Path) -> None:
        """Make sure that only damaged weights can stop the conversion: where it goes, space and a tied head are right.

        Raises:
            InputError: The source cannot be written, or not there.
            EnvironmentLacks: The disk is too full.
        """
        _check_target(out, self.source.folder)
        _check_tied(self.source)
        _check_space(out, sum(self.bytes_per_rank()))

    def run(self, out: Path, progress: Progress = silent) -> ConversionReport:
        """Write ``config.json`` and one ``rank{r}.safetensors`` per rank to ``out``; all of it or nothing.

        Raises:
            InputError: The source cannot be written this way; an older ``out`` is untouched.
            EnvironmentLacks: The disk is too full.
        """
        self.check(out)
        with staged_folder(out) as staging:
            written = _write(staging, self.jobs, self.layout.ranks, progress)
            write_json(staging / CHECKPOINT_CONFIG, self.config())
            if layers := self.layers():
                write_json(staging / QUANT_CFG, layers)
        tied = self.layout.config.tie_word_embeddings
        return ConversionReport(out, len(self.targets), self.layout.ranks.world, written, tied)


def check(
    source: HfCheckpoint, *, dtype: str, recipe: Recipe, parallelism: Parallelism = ONE_RANK
) -> tuple[list[MappedTensor], Layout]:
    """Account for every tensor, from headers alone, and return where each goes.

    Raises:
        InputError: The source does not fit the request; all problems of a kind are listed.
    """
    if dtype not in DTYPES:
        raise InputError(f"checkpoints are {', '.join(DTYPES)}, not {dtype!r}")
    if ARCHITECTURES[source.config.architecture].shares_embedding and parallelism.tp > 1:
        parallelism = replace(parallelism, parallel_embedding=True)
    if problems := parallel_problems(source.config, parallelism):
        raise ContractError(problems)
    file = str(source.folder)
    mapped = map_tensors(source.config, source.tensors, file=file, storage=source.storage)
    layout = Layout(source.config, dtype, parallelism)
    if problems := recipe.problems(mapped, layout):
        raise ContractError(condense(problems, file=file))
    return mapped, layout


def prepare(
    source: HfCheckpoint,
    *,
    dtype: str,
    recipe: Recipe,
    parallelism: Parallelism = ONE_RANK,
    notes: Mapping[str, Any] | None = None,
) -> Conversion:
    """Check a conversion, and return what is to be done.

    Raises:
        InputError: The source does not fit the request; all problems of a kind are listed.
    """
    mapped, layout = check(source, dtype=dtype, recipe=recipe, parallelism=parallelism)
    return Conversion(source, recipe, layout, recipe.jobs(mapped, layout), notes or {})


def convert(
    source: HfCheckpoint,
    out: Path,
    *,
    dtype: str,
    recipe: Recipe,
    parallelism: Parallelism = ONE_RANK,
    notes: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> ConversionReport:
    """Prepare a conversion and run it.

    Raises:
        InputError: The source does not fit the request; nothing was written, and an older ``out`` is untouched.
        EnvironmentLacks: The disk is too full.
    """
    _check_target(out, source.folder)
    prepared = prepare(source, dtype=dtype, recipe=recipe, parallelism=parallelism, notes=notes)
    return prepared.run(out, progress)


def _write(folder: Path, jobs: Sequence[Job], ranks: Parallelism, progress: Progress) -> int:
    """Run all jobs; return the bytes of all ranks' tensors."""
    with RankFiles(folder, [target for job in jobs for target in job.targets], tp=ranks.tp) as files:
        done, total = 0, files.nbytes
        for job in jobs:
            for target, row, block in job.run():
                done += files.scatter(target, row, block)
                progress("convert", done, total)
        # What stays zero, the padding of the vocabulary, was not scattered.
        progress("convert", total, total)
    return total


def _check_target(out: Path, source: Path) -> None:
    """Refuse to replace anything that is not a checkpoint of ours."""
    target = out.resolve()
    if target == source.resolve() or target in source.resolve().parents:
        raise InputError("would replace the source", path=out, hint="choose another folder")
    if out.exists() and not out.is_dir():
        raise InputError("is a file", path=out, hint="choose another folder")
    others = [path.name for path in contents(out) if not _is_ours(path)]
    if not others and _is_foreign_config(out / CHECKPOINT_CONFIG):
        others = [CHECKPOINT_CONFIG]
    if others:
        message = f"holds other files ({', '.join(others[:5])}), which would be lost"
        raise InputError(message, path=out, hint="choose another folder, or empty this one")


def _is_ours(path: Path) -> bool:
    return path.is_file() and _OURS.fullmatch(path.name) is not None


def _is_foreign_config(path: Path) -> bool:
    """Return whether a ``config.json`` is something else than a checkpoint's or an engine's."""
    try:
        return path.exists() and not {"architecture", "build_config"} & read_json(path).keys()
    except InputError:
        return True


def _check_tied(source: HfCheckpoint) -> None:
    for name, original in tied_copies(source.config, source.tensors).items():
        if name in source.tensors and not _equal(source.tensors[name], source.tensors[original]):
            message = f"tie_word_embeddings is true, but {name} differs from {original}"
            hint = "set tie_word_embeddings to false in config.json to keep both"
            raise InputError(message, path=source.folder, hint=hint)


def _equal(one: TensorInfo, other: TensorInfo) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return all(np.array_equal(a, b) for a, b in zip(one.chunks(), other.chunks(), strict=True))


def _check_space(out: Path, needed_bytes: int) -> None:
    place = staging_place(out)
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise InputError("cannot be written", path=existing, hint="choose another place")
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes > free_bytes:
        message = f"the checkpoint takes {needed_bytes:,} bytes and {free_bytes:,} are free"
        raise EnvironmentLacks(message, path=out, hint="free space, or write to another disk")
