"""What a bench has found so far, in memory and in files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from trtkit.bench.experiment import BenchResult, Experiment
from trtkit.bench.page import page
from trtkit.bench.whole import write_whole
from trtkit.errors import InputError


@dataclass(frozen=True)
class Files:
    """What is to be written, whole and after each run: whatever comes later, it is there."""

    html: Path | None
    requests: Path | None
    calibration: Path | None

    def check(self, read: Mapping[str, Path | None]) -> None:
        """Check that they can be written, before minutes of load, and are none of the files that are read.

        Raises:
            InputError: One cannot, or is.
        """
        options = {"--html": self.html, "--requests": self.requests, "--calibration": self.calibration}
        given = {name: path for name, path in options.items() if path is not None}
        if len({path.resolve() for path in given.values()}) < len(given):
            raise InputError(f"{', '.join(given)} name one file twice", hint="give each its own")
        inputs = {path.resolve(): name for name, path in read.items() if path is not None}
        for name, path in given.items():
            if path.resolve() in inputs:
                what = f"{name} would overwrite the file of {inputs[path.resolve()]}"
                raise InputError(what, path=path, hint="name another file")
            if path.is_dir() or not _takes_files(path.parent):
                raise InputError(
                    f"{name} cannot be written", path=path, hint="name a file in a folder that takes one"
                )

    def write(self, experiment: Experiment, result: BenchResult) -> None:
        """Write the report and the requests of all runs so far."""
        if self.html is not None:
            write_whole(self.html, page(result, experiment.samples, experiment.contract.classes))
        if self.requests is not None:
            lines = (
                json.dumps({"rate_per_s": rate_per_s, "seed": seed, **asdict(each)}) + "\n"
                for (rate_per_s, seed), samples in experiment.samples.items()
                for each in samples
            )
            write_whole(self.requests, "".join(lines))


def _takes_files(folder: Path) -> bool:
    """Tell by trying: of some folders the system says that root may write to them."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@dataclass
class Keeper:
    """Keeps what the runs so far say."""

    files: Files
    traffic: Mapping[str, str]
    result: BenchResult | None = None

    def keep(self, experiment: Experiment) -> None:
        """Keep it, in memory and in files."""
        self.result = experiment.result(self.traffic)
        self.files.write(experiment, self.result)
