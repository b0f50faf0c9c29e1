"""What was found about a candidate, and the verdict: plain data that goes into JSON as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trtkit.errors import Problem, Severity
from trtkit.quantize.fingerprint import SOME
from trtkit.quantize.gate.metrics import Interval

SCHEMA_VERSION = 1
_FEW_SAMPLES = 8
"""Of 8 samples a bootstrapped interval has 1.96 * sqrt(7 / 8) = 1.83 standard errors to each side, Student's t 2.36."""


@dataclass(frozen=True)
class Measure:
    """One figure with its interval, beside its limit and what rounding the baseline to bfloat16 costs."""

    name: str
    interval: Interval
    limit: float | None
    upper: bool
    """Whether the limit is one that the figure has to stay below."""
    floor: Interval | None = None

    @property
    def decisive(self) -> float:
        """The end of the interval that speaks against the candidate."""
        return self.interval.high if self.upper else self.interval.low

    @property
    def passes(self) -> bool:
        """Whether it is within the limit; what is no number is not."""
        values = (self.interval.value, self.interval.low, self.interval.high)
        if not all(map(math.isfinite, values)):
            return False
        if self.limit is None:
            return True
        return self.decisive <= self.limit if self.upper else self.decisive >= self.limit


@dataclass(frozen=True)
class WorstToken:
    """A position where the candidate is far off."""

    sample: int
    position: int
    kl: float
    context: str
    """Text up to the position."""
    baseline: str
    """What the baseline takes for likeliest to come next."""
    candidate: str


@dataclass(frozen=True)
class TaskScore:
    """What both reach in a task of lm-eval."""

    task: str
    metric: str
    num_questions: int
    baseline: float
    candidate: float


@dataclass(frozen=True)
class Report:
    """The whole of it."""

    baseline: str
    candidate: str
    executor: str
    """Who computed the candidate."""
    algorithm: str | None
    kv_cache: str | None
    data: str
    num_samples: int
    samples_asked: int
    num_tokens: int
    dtype: str
    measures: tuple[Measure, ...]
    non_finite_samples: tuple[int, ...] = ()
    baseline_accuracy: float | None = None
    tasks: tuple[TaskScore, ...] = ()
    layer_errors: tuple[float, ...] = ()
    """Of each layer's output on the first sample, relative to its size."""
    weight_errors: Mapping[str, float] = field(default_factory=dict)
    """Of each linear layer's weight, relative to its size."""
    worst: tuple[WorstToken, ...] = ()
    calibrated_part: float = 0.0
    """Of the text, what the candidate was calibrated with too, as far as it says so."""
    weights: str | None = None
    """What the contract calls the format of the weights; None where there is no contract."""
    tried: tuple[Mapping[str, Any], ...] = ()
    """Summaries of the formats that were tried before this one."""

    @property
    def passes(self) -> bool:
        """The verdict; there is none without measures."""
        return (
            bool(self.measures) and not self.non_finite_samples and all(each.passes for each in self.measures)
        )

    def reasons(self) -> Iterator[str]:
        """Say why the verdict is no."""
        if self.non_finite_samples:
            yield f"logits are not finite in {len(self.non_finite_samples)} of {self.num_samples} samples"
        for measure in self.measures:
            if not measure.passes:
                relation = "above" if measure.upper else "below"
                limit = "" if measure.limit is None else f" {measure.limit:.4g}"
                worst = f"{measure.interval.value:.4g}, at worst {measure.decisive:.4g} (95 %),"
                yield f"{measure.name}: {worst} is {relation}{limit}"

    @property
    def format(self) -> str:
        """The algorithms by name."""
        cache = f" with {self.kv_cache} KV cache" if self.kv_cache else ""
        algorithm = self.algorithm or "not quantized"
        named = algorithm if self.weights in {None, "none"} else f"{self.weights} ({algorithm})"
        return f"{named}{cache}"

    def remarks(self) -> Iterator[Problem]:
        """Say what weakens the verdict."""
        yield from sample_remarks(self.samples_asked, self.num_samples)
        if self.calibrated_part >= SOME:
            message = f"{self.calibrated_part:.0%} of the text of the gate is calibrated with, too"
            hint = "give it text with --data that nothing was calibrated with"
            yield Problem(message, key="data", hint=hint, severity=Severity.WARNING)

    def summary(self) -> dict[str, Any]:
        """Return format, verdict and figures alone."""
        figures = {each.name: asdict(each.interval) | {"limit": each.limit} for each in self.measures}
        fields = {
            "format": self.format,
            "kv_cache": self.kv_cache,
            "executor": self.executor,
            "samples": {"asked": self.samples_asked, "used": self.num_samples},
            "tokens": self.num_tokens,
            "data": self.data,
            "verdict": "pass" if self.passes else "fail",
            "reasons": list(self.reasons()),
            "measures": figures,
            "tasks": [asdict(each) for each in self.tasks],
        }
        found: dict[str, Any] = _without_nan(fields)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return it as one document; figures that are no numbers are null."""
        measures = [asdict(each) | {"passes": each.passes} for each in self.measures]
        fields = {
            "schema": SCHEMA_VERSION,
            "verdict": "pass" if self.passes else "fail",
            "reasons": list(self.reasons()),
            **asdict(self),
            "measures": measures,
        }
        found: dict[str, Any] = _without_nan(fields)
        return found

    def as_text(self) -> str:
        """Return a table."""
        head = f"{'':<22}{'value':>10}{'95 % interval':>24}{'limit':>12}{'bf16 floor':>12}"
        lines = [head, *(_line(measure) for measure in self.measures)]
        if self.baseline_accuracy is not None:
            lines.append(f"{'baseline accuracy':<22}{self.baseline_accuracy:>10.4f}")
        for each in self.tasks:
            scores = f"{each.candidate:.4f}, baseline {each.baseline:.4f}"
            lines.append(f"{each.task} {each.metric}: {scores}, {each.num_questions:,} questions")
        lines.append(f"{self.num_samples} samples, {self.num_tokens:,} tokens of {self.data}")
        verdict = "pass" if self.passes else "FAIL"
        return "\n".join(
            [*lines, f"{verdict}: {self.candidate}", *(f"  {reason}" for reason in self.reasons())]
        )


def sample_remarks(asked: int, used: int) -> Iterator[Problem]:
    """Yield a warning for samples that are fewer than asked for, or too few for an interval."""
    if used < asked:
        message = f"the gate read {used} of {asked} samples: there is no more text"
        hint = "give more text with --data, or lower --samples"
        yield Problem(message, key="samples", hint=hint, severity=Severity.WARNING)
    if used < _FEW_SAMPLES:
        message = f"the intervals of {used} samples are narrower than they should be"
        hint = f"let the gate read {_FEW_SAMPLES} or more"
        yield Problem(message, key="samples", hint=hint, severity=Severity.WARNING)


def _line(measure: Measure) -> str:
    interval, limit, floor = measure.interval, "", ""
    if measure.limit is not None:
        limit = f"{'<=' if measure.upper else '>='} {measure.limit:.4f}"
    if measure.floor is not None:
        floor = f"{measure.floor.value:.4f}"
    spread = f"{interval.low:.4f} to {interval.high:.4f}"
    mark = "" if measure.passes else "  fails"
    return f"{measure.name:<22}{interval.value:>10.4f}{spread:>24}{limit:>12}{floor:>12}{mark}"


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
