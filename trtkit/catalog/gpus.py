"""GPUs: what a plan needs to know of each, in ``gpus.csv``.

Memory is what ``nvidia-smi`` reports as total: less than the name says where ECC takes its part, more where the name
counts in other units (an "80 GB" H100 has 81,559 MiB = 85.5e9 bytes). Rates are dense (no structured sparsity), with
accumulation in float32 where a GPU has two; the link is one direction, NVLink or PCIe, to the GPUs of the same server.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One product."""

    name: str
    """As contracts name it."""
    title: str
    sm: int
    """Compute capability without its dot: 8.9 is 89."""
    memory_mib: int
    bandwidth_gb_per_s: float
    fp16_tflops: float
    """Also of bfloat16."""
    int8_tops: float | None
    fp8_tflops: float | None
    """None for a GPU whose tensor cores do not have it."""
    link_gb_per_s: float
    source: str
    read_on: str
    """Day on which the row was compared with its source."""

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return self.memory_mib * MIB


def _read(path: Path) -> dict[str, Gpu]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["name"]: _gpu(row) for row in csv.DictReader(file)}


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        name=row["name"],
        title=row["title"],
        sm=int(row["sm"]),
        memory_mib=int(row["memory_mib"]),
        bandwidth_gb_per_s=float(row["bandwidth_gb_per_s"]),
        fp16_tflops=float(row["fp16_tflops"]),
        int8_tops=float(row["int8_tops"]) if row["int8_tops"] else None,
        fp8_tflops=float(row["fp8_tflops"]) if row["fp8_tflops"] else None,
        link_gb_per_s=float(row["link_gb_per_s"]),
        source=row["source"],
        read_on=row["read_on"],
    )


GPUS: dict[str, Gpu] = _read(Path(__file__).with_suffix(".csv"))
"""By the name that contracts give."""
