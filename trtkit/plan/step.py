"""What one step of a build takes, way by way, beside what there is of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trtkit.catalog.gpus import GPUS, Gpu
from trtkit.errors import Problem
from trtkit.plan.host import Need, gigabytes, node_bytes, smallest_node


@dataclass(frozen=True)
class Place:
    """Where something runs."""

    name: str
    memory_bytes: int | None
    """What may be used of its memory; None when unknown."""
    gpu: Gpu | None = None

    @classmethod
    def of_gpus(cls, gpu: Gpu, count: int) -> Place:
        """Return some GPUs of one machine."""
        return cls(f"{count} x {gpu.title}", node_bytes(gpu, count), gpu)


@dataclass(frozen=True)
class Way:
    """One way to do a step."""

    name: str
    need: Need
    place: Place
    calibrates: bool = True

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        there = self.place.memory_bytes
        return there is None or self.need.total_bytes <= there

    def summary(self) -> dict[str, Any]:
        """Return what a program needs."""
        return {
            "way": self.name,
            "place": self.place.name,
            "needed_bytes": {part.name: part.nbytes for part in self.need.parts},
            "total_bytes": self.need.total_bytes,
            "available_bytes": self.place.memory_bytes,
            "fits": self.fits,
        }


def render_ways(ways: Sequence[Way]) -> str:
    """Return the ways as aligned text, one part a line."""
    return "\n".join(line for way in ways for line in _lines(way))


def refusal(way: Way, *, key: str, instead: Way | None = None) -> Problem:
    """Return the problem that a way does not fit: what takes how much, and what would hold it."""
    there = gigabytes(way.place.memory_bytes or 0)
    message = (
        f"{way.name} takes {gigabytes(way.need.total_bytes)} ({way.need.breakdown()}), and {way.place.name} "
        f"has {there}"
    )
    return Problem(message, key, "; or ".join(_ways_out(way, instead)))


def _ways_out(way: Way, instead: Way | None) -> Iterator[str]:
    shorter = ", or a shorter calibration.max_length" if way.calibrates else ""
    same = [way.place.gpu] if way.place.gpu else []
    node = smallest_node(way.need, same) or smallest_node(way.need, GPUS.values())
    if instead is None:
        yield f"a machine with {gigabytes(way.need.total_bytes)} of free memory{shorter}"
    elif node is None:
        yield "no node of the catalog holds it"
    else:
        yield f"the smallest node that holds it is {node[1]} x {node[0].title}"
    if instead is not None:
        fits = "which it has" if instead.fits else f"and it has {gigabytes(instead.place.memory_bytes or 0)}"
        yield (
            f"{instead.name}, as `trtkit calibrate` does on a CPU too: {gigabytes(instead.need.total_bytes)} of "
            f"{instead.place.name}, {fits} (--layer-wise)"
        )


def _lines(way: Way) -> Iterator[str]:
    yield f"{way.name}, on {way.place.name}"
    for part in way.need.parts:
        if part.nbytes:
            yield f"  {part.name:<32}{gigabytes(part.nbytes):>10}"
    there = "unknown" if way.place.memory_bytes is None else gigabytes(way.place.memory_bytes)
    yield f"  {'total':<32}{gigabytes(way.need.total_bytes):>10} of {there}"
