"""The paired comparison: a candidate reads what the baseline has read."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress
from trtkit.errors import InputError
from trtkit.quantize.gate.baseline import Baseline
from trtkit.quantize.gate.executor import Executor, Floats, Tokens
from trtkit.quantize.gate.harness import Scores, Tasks
from trtkit.quantize.gate.limits import Limits
from trtkit.quantize.gate.metrics import Comparison, Interval, compare, loss, mean, perplexity_ratio, share
from trtkit.quantize.gate.report import Measure, Report, TaskScore, WorstToken
from trtkit.quantize.gate.samples import Samples
from trtkit.quantize.gate.task import Question, answers

_WORST = 20
_CONTEXT_TOKENS = 12


@dataclass(frozen=True)
class Judged:
    """Who is judged, as the report names it."""

    executor: Executor
    path: str
    kind: str
    algorithm: str | None = None
    kv_cache: str | None = None
    weight_errors: Mapping[str, float] = field(default_factory=dict)
    layers: Callable[[Tokens], list[Floats]] | None = None
    """Gives what each layer hands on; None for an executor that does not show it."""


@dataclass(frozen=True)
class Exam:
    """What both are asked."""

    baseline: Baseline
    source: HfCheckpoint
    samples: Samples
    questions: Sequence[Question]
    tasks: Tasks | None
    tokenizer: Any
    limits: Limits
    dtype: str

    def judge(self, judged: Judged, progress: Progress) -> Report:
        """Compare on every sample and question.

        Raises:
            InputError: The candidate's vocabulary is another one.
        """
        found = [self._compare(judged, index, progress) for index in range(len(self.samples.sequences))]
        finite = [each for each in found if each.is_finite]
        bad = tuple(index for index, each in enumerate(found) if not each.is_finite)
        right = [*answers(judged.executor, self.tokenizer, self.questions)]
        asked = bool(self.questions)
        scores = self._scores(judged, progress)
        return Report(
            baseline=str(self.source.folder),
            candidate=judged.path,
            executor=judged.kind,
            algorithm=judged.algorithm,
            kv_cache=judged.kv_cache,
            data=self.samples.origin,
            num_samples=len(found),
            samples_asked=self.samples.asked,
            num_tokens=self.samples.num_tokens,
            dtype=self.dtype,
            measures=(
                *self._measures(finite),
                *([self._accuracy(right)] if asked else []),
                *self._losses(scores),
            ),
            non_finite_samples=bad,
            baseline_accuracy=float(self.baseline.right.mean()) if asked else None,
            tasks=tuple(self._task_scores(scores)),
            layer_errors=self._layer_errors(judged),
            weight_errors=judged.weight_errors,
            worst=self._worst(found),
        )

    def _compare(self, judged: Judged, index: int, progress: Progress) -> Comparison:
        tokens, expected = self.samples.sequences[index], self.baseline.log_probabilities(index)
        logits = judged.executor.logits(tokens)
        if logits.shape != expected.shape:
            message = f"gives logits of {logits.shape}, the baseline of {expected.shape}"
            raise InputError(message, path=judged.path, hint="the two are of different models")
        total = self.samples.logits_bytes(expected.shape[1])
        progress("candidate", total * (index + 1) // len(self.samples.sequences), total)
        with np.errstate(invalid="ignore", over="ignore"):
            return compare(tokens, expected, logits)

    def _measures(self, found: Sequence[Comparison]) -> list[Measure]:
        if not found:
            return []
        floor, limits = self.baseline.floor, self.limits
        top1_floor = mean([each.agrees for each in floor]) if floor else None
        min_top1 = limits.min_top1 * (top1_floor.value if top1_floor else 1.0)
        return [
            Measure(
                "KL", mean([each.kl for each in found]), limits.max_kl, upper=True, floor=_mean(floor, "kl")
            ),
            Measure("top-1 agreement", mean([each.agrees for each in found]), min_top1, False, top1_floor),
            Measure(
                "perplexity ratio",
                perplexity_ratio(found),
                limits.max_ppl_ratio,
                upper=True,
                floor=perplexity_ratio(floor) if floor else None,
            ),
            Measure(
                "logit cosine", mean([each.cosine for each in found]), None, False, _mean(floor, "cosine")
            ),
        ]

    def _accuracy(self, right: Sequence[bool]) -> Measure:
        return Measure("accuracy", share(right), self.limits.min_accuracy, upper=False)

    def _scores(self, judged: Judged, progress: Progress) -> Scores:
        if self.tasks is None:
            return {}
        return self.tasks.scores(judged.executor, self.source, self.tokenizer, progress, "candidate")

    def _losses(self, scores: Scores) -> Iterator[Measure]:
        for (name, metric), values in scores.items():
            lost = loss(self.baseline.scores[name, metric], values)
            yield Measure(f"{name} {metric} loss", lost, self.limits.max_task_loss, upper=True)

    def _task_scores(self, scores: Scores) -> Iterator[TaskScore]:
        for (name, metric), values in scores.items():
            before = self.baseline.scores[name, metric]
            yield TaskScore(name, metric, len(values), float(before.mean()), float(values.mean()))

    def _layer_errors(self, judged: Judged) -> tuple[float, ...]:
        if judged.layers is None:
            return ()
        states = judged.layers(self.samples.sequences[0])
        return tuple(_error(ours, theirs) for ours, theirs in zip(states, self.baseline.layers, strict=True))

    def _worst(self, found: Sequence[Comparison]) -> tuple[WorstToken, ...]:
        places = (
            (float(kl), sample, position)
            for sample, each in enumerate(found)
            for position, kl in enumerate(each.kl)
            if np.isfinite(kl)
        )
        return tuple(self._token(found[place[1]], *place) for place in heapq.nlargest(_WORST, places))

    def _token(self, found: Comparison, kl: float, sample: int, position: int) -> WorstToken:
        before: Tokens = self.samples.sequences[sample][max(0, position - _CONTEXT_TOKENS + 1) : position + 1]
        decode = self.tokenizer.decode
        context = decode(before.tolist(), skip_special_tokens=False)
        tops = (
            decode([int(top[position])], skip_special_tokens=False)
            for top in (found.baseline_top, found.candidate_top)
        )
        return WorstToken(sample, position, kl, context, *tops)


def _mean(found: Sequence[Comparison], name: str) -> Interval | None:
    return mean([getattr(each, name) for each in found]) if found else None


def _error(ours: Floats, theirs: Floats) -> float:
    size = float(np.linalg.norm(theirs))
    return float(np.linalg.norm(ours - theirs)) / size if size else float(np.linalg.norm(ours))
