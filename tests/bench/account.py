"""What was measured, and what it should have been."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MB, GB = 1_000_000, 1_000_000_000
_SLACK = 0.02
"""Of the bytes read: headers, and the ends of tensors that share a block."""
_MOST_GROWTH_MB = 8
"""Of a copy's memory, from the smallest model to the largest: their headers, and nothing else, differ. Quantizing ones
take compiled kernels from some size on, and stay below a bound whatever the size."""


@dataclass(frozen=True)
class Case:
    """A kind of conversion, and what it may cost."""

    name: str
    weights: str
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    least_of_cp: float = 0.0
    """Speed as a share of `cp`'s, of what a model has more than a smaller one as below."""
    least_gb_per_s: float = 0.0
    """Bytes that a model has more than a smaller one, per CPU second that it takes more: what starts once, imports and
    compiled kernels, is in neither. Of one model alone all is in it."""
    most_rss_mb: float = 64
    """Memory on top of what the interpreter and its imports take."""
    takes_ranges: bool = False
    smoothquant: str | None = None
    reads: int = 1
    """How often a weight is read: what all of a layer decides is found before its first value is written."""

    @property
    def is_copy(self) -> bool:
        """Whether values stay what they are, but for their data type."""
        return not self.least_gb_per_s


CASES = (
    Case("bf16 tp1", "none", least_of_cp=0.6),
    Case("bf16 tp8", "none", tensor_parallel=8, least_of_cp=0.5),
    Case("int8-wo tp1", "int8-wo", least_of_cp=0.6),
    Case("fp16 tp1", "none", dtype="float16", least_of_cp=0.3),
    Case("int8-sq tp1", "int8-sq", least_gb_per_s=1.0, most_rss_mb=300, takes_ranges=True, reads=2),
    Case(
        "int8-sq per-tensor tp1",
        "int8-sq",
        least_gb_per_s=1.0,
        most_rss_mb=300,
        takes_ranges=True,
        reads=3,
        smoothquant="per-tensor",
    ),
    Case("fp8 tp1", "fp8", least_gb_per_s=1.0, most_rss_mb=300, takes_ranges=True, reads=2),
    Case("fp8-rowwise tp1", "fp8-rowwise", least_gb_per_s=1.0, most_rss_mb=300),
)


@dataclass(frozen=True)
class Sample:
    """One run. Of `cp` only the times are known."""

    cpu_s: float
    wall_s: float
    rss_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    start_cpu_s: float = 0.0
    start_rss_bytes: int = 0
    torch: bool = False


@dataclass(frozen=True)
class Verdict:
    """A figure next to its goal."""

    subject: str
    what: str
    figure: str
    goal: str
    met: bool


@dataclass(frozen=True)
class Result:
    """All runs of one case with one model."""

    case: Case
    source_bytes: int
    replicated_bytes: int
    """What every rank holds whole."""
    copies: Sequence[Sample]
    """Runs of `cp`, in turns with those of the case."""
    samples: Sequence[Sample]

    @property
    def name(self) -> str:
        """Return what the tables call it."""
        return f"{self.size} {self.case.name}"

    @property
    def size(self) -> str:
        """Return what the tables call the model."""
        return f"{self.source_bytes / GB:.2g} GB"

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds of the best run: neighbours only ever add to them."""
        return min(sample.cpu_s for sample in self.samples)

    @property
    def cp_cpu_s(self) -> float:
        """Return the CPU seconds of the best `cp`."""
        return min(sample.cpu_s for sample in self.copies)

    @property
    def gb_per_s(self) -> float:
        """Return gigabytes of the source per CPU second."""
        return self.source_bytes / GB / self.cpu_s

    @property
    def cp_gb_per_s(self) -> float:
        """Return gigabytes of the source per CPU second of `cp`."""
        return self.source_bytes / GB / self.cp_cpu_s

    @property
    def of_cp(self) -> float:
        """Return the speed as a share of `cp`'s, which writes tensors that ranks replicate once only."""
        return self.cp_cpu_s / self.cpu_s

    @property
    def least_gb_per_s(self) -> float:
        """Return the goal of ``gb_per_s``."""
        return max(self.case.least_gb_per_s, self.case.least_of_cp * self.cp_gb_per_s)

    @property
    def rss_mb(self) -> float:
        """Return the memory of the worst run."""
        return max(sample.rss_bytes for sample in self.samples) / MB

    @property
    def read(self) -> float:
        """Return bytes read per byte of the source."""
        return max(sample.read_bytes for sample in self.samples) / self.source_bytes

    @property
    def least_read(self) -> float:
        """Return the goal of ``read``: less than the whole source was read in a way that is not counted."""
        return 1 - _SLACK

    @property
    def most_read(self) -> float:
        """Return the goal of ``read``: once, or once per rank what every rank holds whole."""
        ranks = self.case.tensor_parallel
        return self.case.reads + (ranks - 1) * self.replicated_bytes / self.source_bytes + _SLACK

    def verdicts(self) -> Iterator[Verdict]:
        """Yield each figure that has a goal."""
        case = self.case
        met = self.rss_mb <= case.most_rss_mb
        yield Verdict(self.name, "memory", f"{self.rss_mb:.1f}", f"≤ {case.most_rss_mb:g} MB", met)
        met = self.least_read <= self.read <= self.most_read
        goal = f"{self.least_read:.2f} to {self.most_read:.2f} of the source"
        yield Verdict(self.name, "read", f"{self.read:.3f}", goal, met)
        torch = any(sample.torch for sample in self.samples)
        yield Verdict(self.name, "torch", "imported" if torch else "not imported", "not imported", not torch)


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Return each figure that has a goal, of one result or of several."""
    found = [verdict for result in results for verdict in result.verdicts()]
    for name in dict.fromkeys(result.case.name for result in results):
        found += _over_sizes([result for result in results if result.case.name == name])
    return found


def _over_sizes(results: Sequence[Result]) -> Iterator[Verdict]:
    """Yield the figures of one case that are of all sizes together."""
    case, name = results[0].case, results[0].case.name
    least, most = (pick(results, key=lambda result: result.source_bytes) for pick in (min, max))
    what = "speed" if least is most else f"speed from {least.size} to {most.size}"
    size, cpu_s, cp_cpu_s = most.source_bytes / GB, most.cpu_s, most.cp_cpu_s
    if least is not most:
        size, cpu_s = size - least.source_bytes / GB, max(cpu_s - least.cpu_s, 1e-9)
        cp_cpu_s -= least.cp_cpu_s
    if case.least_of_cp:
        share, goal = cp_cpu_s / cpu_s, f"≥ {case.least_of_cp:.0%} of cp"
        yield Verdict(name, what, f"{share:.0%}", goal, share >= case.least_of_cp)
    if case.least_gb_per_s:
        speed, goal = size / cpu_s, f"≥ {case.least_gb_per_s:g} GB/s per core"
        yield Verdict(name, what, f"{speed:.2f}", goal, speed >= case.least_gb_per_s)
    if case.is_copy and least is not most:
        rss_mb = [result.rss_mb for result in results]
        growth = max(rss_mb) - min(rss_mb)
        met = growth <= _MOST_GROWTH_MB
        yield Verdict(name, "memory over sizes", f"+{growth:.1f}", f"≤ {_MOST_GROWTH_MB} MB", met)
