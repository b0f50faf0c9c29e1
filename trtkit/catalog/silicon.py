"""Step times of common models on common GPUs, fitted to tables of measured operators; ``silicon.json`` is the data.

``make silicon`` writes it anew from aiconfigurator, which composes timings of single operators that its authors
measured on real GPUs. So these are estimates too, and say so; they part from the roofline where kernels do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SILICON_FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Cell:
    """One model on one kind of GPU in one format, by one number of tensor-parallel ranks."""

    gpu: str
    model: str
    """Name for the reader; what counts is ``shape``."""
    shape: str
    weights: str
    kv_cache: str
    tp: int
    prefill_ms: tuple[float, float, float]
    """Of n tokens: constant, times n, times n squared."""
    step_ms: tuple[float, float, float]
    """Of a batch with so many tokens behind each: constant, times batch, times batch and tokens."""
    worst: float
    """Largest relative error of the fit."""


@dataclass(frozen=True)
class SiliconTable:
    """All of it, with its provenance."""

    source: str
    read_on: str
    cells: tuple[Cell, ...]
    shares: dict[str, dict[str, tuple[float, float]]]
    """GPU, then format of weights: what part of the roofline prefill and decoding reach (medians)."""


@cache
def silicon_table() -> SiliconTable:
    """Return the shipped table."""
    return parse_table(json.loads(SILICON_FILE.read_text(encoding="utf-8")))


def parse_table(raw: dict[str, Any]) -> SiliconTable:
    """Return the table of such a document."""
    cells = [
        Cell(**{**cell, "prefill_ms": tuple(cell["prefill_ms"]), "step_ms": tuple(cell["step_ms"])})
        for cell in raw["cells"]
    ]
    shares = {
        gpu: {name: (each[0], each[1]) for name, each in formats.items()}
        for gpu, formats in raw["shares"].items()
    }
    return SiliconTable(raw["source"], raw["read_on"], tuple(cells), shares)
