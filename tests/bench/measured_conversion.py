"""One conversion that measures itself: ``measured_conversion.py REQUEST`` prints one line of JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.recipes import recipe_for


def main(
    source: str,
    out: str,
    weights: str,
    dtype: str,
    tensor_parallel: int,
    smoothquant: str | None,
    ranges: str | None,
) -> None:
    """Convert as ``trtkit convert`` does, and print what it cost on top of the interpreter with its imports."""
    start = {"start_cpu_s": _cpu_s(), "start_rss_bytes": _memory_bytes("VmRSS")}
    started_s, read_bytes = time.perf_counter(), _read_bytes()
    convert(
        HfCheckpoint.open(Path(source)),
        Path(out),
        dtype=dtype,
        recipe=recipe_for(
            quant_plan(weights), ranges=Path(ranges) if ranges else None, smoothquant=smoothquant
        ),
        parallelism=Parallelism(tp=tensor_parallel),
    )
    cost = {
        "cpu_s": _cpu_s() - start["start_cpu_s"],
        "wall_s": time.perf_counter() - started_s,
        # Not ru_maxrss: a child begins with the peak of the process that started it.
        "rss_bytes": _memory_bytes("VmHWM") - start["start_rss_bytes"],
        "read_bytes": _read_bytes() - read_bytes,
        "torch": "torch" in sys.modules,
    }
    sys.stdout.write(json.dumps({**start, **cost}) + "\n")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _read_bytes() -> int:
    """Return what went through read() and copy_file_range(); mapped files are not in it."""
    return _field("io", "rchar")


def _memory_bytes(name: str) -> int:
    return _field("status", name) * 1024


def _field(file: str, name: str) -> int:
    lines = Path("/proc/self", file).read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
