"""Runs of `cp` and of conversions, one after the other, on one synthetic model."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from account import GB, Case, Result, Sample
from synthetic import SyntheticModel

_RANGES = "ranges.safetensors"
_CHILD = Path(__file__).with_name("measured_conversion.py")


class ConversionFailedError(Exception):
    """The process of a conversion ended with an error, which it has told on stderr."""


def needed_bytes(model: SyntheticModel, cases: Sequence[Case]) -> int:
    """Return the disk space of the model and the largest checkpoint of it."""
    ranks = max(case.tensor_parallel for case in cases)
    return 2 * model.nbytes + (ranks - 1) * model.replicated_bytes


def measure(
    model: SyntheticModel, cases: Sequence[Case], *, rounds: int, scratch: Path, tell: Callable[[str], None]
) -> list[Result]:
    """Run `cp` and every case once per round, so that what slows the machine down meets all of them.

    Raises:
        ConversionFailedError: A conversion did not come to its end.
    """
    source, size = scratch / "source", f"{model.nbytes / GB:.3g} GB"
    tell(f"{size}: writing the model")
    model.write(source)
    model.write_ranges(scratch / _RANGES)
    _read_once(source)
    copies: list[Sample] = []
    samples: dict[str, list[Sample]] = {case.name: [] for case in cases}
    for number in range(1, rounds + 1):
        tell(f"{size}, round {number} of {rounds}: cp")
        copies.append(_copy(source, scratch / "copy"))
        for case in cases:
            tell(f"{size}, round {number} of {rounds}: {case.name}")
            samples[case.name].append(_convert(case, source, scratch / "checkpoint"))
    shutil.rmtree(source)
    return [
        Result(case, model.nbytes, model.replicated_bytes, tuple(copies), tuple(samples[case.name]))
        for case in cases
    ]


def _read_once(folder: Path) -> None:
    """Bring a folder's files into the page cache."""
    buffer = bytearray(1 << 20)
    for path in folder.iterdir():
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _copy(source: Path, out: Path) -> Sample:
    """Copy a folder with `cp` and flush its files to disk, as a conversion does."""
    before, started_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["cp", "-r", source, out], check=True)
    subprocess.run(["sync", *out.iterdir()], check=True)
    wall_s, after = time.perf_counter() - started_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(out)
    return Sample(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall_s)


def _convert(case: Case, source: Path, out: Path) -> Sample:
    request = {
        "source": str(source),
        "out": str(out),
        "weights": case.weights,
        "dtype": case.dtype,
        "tensor_parallel": case.tensor_parallel,
        "smoothquant": case.smoothquant,
        "ranges": str(source.with_name(_RANGES)) if case.takes_ranges else None,
    }
    done = subprocess.run([sys.executable, _CHILD, json.dumps(request)], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise ConversionFailedError(case.name)
    written_bytes = sum(path.stat().st_size for path in out.iterdir())
    shutil.rmtree(out)
    return Sample(**json.loads(done.stdout), written_bytes=written_bytes)
