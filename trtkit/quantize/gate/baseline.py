"""What the baseline answers, kept on disk so that several candidates share one run of it.

``NNNNN.npy`` are log-probabilities ``(length, vocab)`` of a sample in float16: near 0, where most of the probability
is, they are finer than logits would be. ``baseline.npz`` has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress
from trtkit.errors import VerificationError
from trtkit.quantize.gate.executor import Floats
from trtkit.quantize.gate.harness import Scores, Tasks
from trtkit.quantize.gate.metrics import Comparison, compare, log_softmax
from trtkit.quantize.gate.model import load_source
from trtkit.quantize.gate.samples import Samples, open_tokenizer
from trtkit.quantize.gate.task import Question, answers

_REST = "baseline.npz"
_FIELDS = tuple(Comparison.__dataclass_fields__)
_LOWEST = float(np.finfo(np.float16).min)


@dataclass(frozen=True)
class Baseline:
    """A folder that :func:`write_baseline` wrote."""

    folder: Path
    floor: tuple[Comparison, ...]
    """The baseline in bfloat16 against itself in float32, sample by sample; none where that was not measured."""
    right: npt.NDArray[np.bool_]
    """Which questions it answers rightly."""
    scores: Scores
    """What it reaches in tasks of lm-eval."""
    layers: tuple[Floats, ...]
    """What each layer hands on of the first sample; 32 layers of 512 x 4096 values are 268 MB."""

    @classmethod
    def open(cls, folder: Path) -> Baseline:
        """Read it; log-probabilities are left on disk."""
        with np.load(folder / _REST) as rest:
            layers = tuple(rest[f"layer{index}"] for index in range(int(rest["num_layers"])))
            floor = tuple(
                Comparison(*(rest[f"floor{index}.{name}"] for name in _FIELDS))
                for index in range(int(rest["num_floor"]))
            )
            scores = {
                (str(name), str(metric)): rest[f"scores{index}"]
                for index, (name, metric) in enumerate(rest["scored"])
            }
            return cls(folder, floor, rest["right"], scores, layers)

    def log_probabilities(self, sample: int) -> npt.NDArray[np.float16]:
        """Return those of a sample."""
        found: npt.NDArray[np.float16] = np.load(_file(self.folder, sample), mmap_mode="r")
        return found


def write_baseline(
    source: HfCheckpoint,
    samples: Samples,
    questions: Sequence[Question],
    tasks: Tasks | None,
    folder: Path,
    *,
    dtype: str,
    progress: Progress,
) -> None:
    """Run the source over samples, questions and tasks, and write what it answers into the empty folder.

    In float32 the same weights run a second time in bfloat16: what they differ by is the floor, below which no
    difference means anything.

    Raises:
        InputError: The source cannot be loaded.
        VerificationError: It gives something that is not finite.
    """
    executor, tokenizer = load_source(source, dtype=dtype), open_tokenizer(source)
    has_floor = dtype == "float32"
    report = partial(progress, "baseline")
    total = samples.logits_bytes(source.config.vocab_size) * (1 + has_floor)
    for index, tokens in enumerate(samples.sequences):
        np.save(_file(folder, index), _finite(log_softmax(executor.logits(tokens)), index, source))
        report(total // (1 + has_floor) * (index + 1) // len(samples.sequences), total)
    layers = executor.hidden(samples.sequences[0])
    rest: dict[str, Any] = {f"layer{index}": values for index, values in enumerate(layers)}
    rest["num_layers"] = len(layers)
    rest["right"] = np.fromiter(answers(executor, tokenizer, questions), np.bool_)
    rest |= _scored(tasks.scores(executor, source, tokenizer, progress, "baseline") if tasks else {}, source)
    rest["num_floor"] = len(samples.sequences) if has_floor else 0
    if has_floor:
        executor.round_weights("bfloat16")
        for index, tokens in enumerate(samples.sequences):
            found = compare(tokens, np.load(_file(folder, index)), executor.logits(tokens))
            rest |= {f"floor{index}.{name}": getattr(found, name) for name in _FIELDS}
            report(total // 2 + total // 2 * (index + 1) // len(samples.sequences), total)
    report(total, total)
    np.savez(folder / _REST, **rest)


def _scored(scores: Scores, source: HfCheckpoint) -> dict[str, npt.NDArray[Any]]:
    for (name, _), values in scores.items():
        if not np.isfinite(values).all():
            message = f"the baseline itself gives logits that are not finite (task {name})"
            raise VerificationError(
                message, path=source.folder, hint="the model is damaged: download it again"
            )
    arrays: dict[str, npt.NDArray[Any]] = {
        f"scores{index}": each for index, each in enumerate(scores.values())
    }
    return arrays | {"scored": np.array([*scores], np.str_).reshape(-1, 2)}


def _finite(values: Floats, sample: int, source: HfCheckpoint) -> npt.NDArray[np.float16]:
    if not np.isfinite(values).all():
        message = f"the baseline itself gives logits that are not finite (sample {sample})"
        raise VerificationError(message, path=source.folder, hint="the model is damaged: download it again")
    return np.maximum(values, _LOWEST).astype(np.float16)


def _file(folder: Path, sample: int) -> Path:
    return folder / f"{sample:05}.npy"
