"""The stage of calibration: source → activation ranges, which later conversions of the same model share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtkit.canonical import content_key
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.safetensors import read_metadata
from trtkit.engine.manifest import code_digest
from trtkit.engine.store import CachePolicy, Stage, Store
from trtkit.errors import EnvironmentLacks, Problem
from trtkit.flow.inputs import MODEL_PACKAGES, data_digests, digests, source_digests, versions
from trtkit.flow.words import contract_words, in_words
from trtkit.quantize.act_range import METADATA
from trtkit.quantize.calibrate import texts
from trtkit.quantize.calibrate.remarks import layer_remarks, sample_remarks
from trtkit.quantize.calibrate.request import Request
from trtkit.quantize.calibrate.run import Calibration, prepare

CALIBRATE = "calibrate"
"""Name of the stage."""
RANGES = "ranges.safetensors"
_OPTIONS = {
    "--group-size": "quantization.group_size:",
    "--column": "quantization.calibration.column:",
    "--data": "quantization.calibration.data",
    "--max-length": "quantization.calibration.max_length:",
    "--samples": "quantization.calibration.samples:",
    "--unreached": "quantization.calibration.unreached:",
}
_COUNTS = ("samples_asked", "samples_used", "texts_skipped", "tokens")
_TOLD = ("for", "group_size", "data", *_COUNTS, "borrowed", "silent", "device")
"""What the manifest keeps of what the file says of itself."""
INSTALL = "pip install 'trtkit[calib]', or use formats that need no ranges: none, int8-wo, fp8-rowwise"


@dataclass(frozen=True)
class Calibrating:
    """A calibration as a stage of a build."""

    source: HfCheckpoint
    request: Request
    store: Store
    progress: Progress

    @cached_property
    def stage(self) -> Stage:
        """Source → ranges."""
        return Stage(CALIBRATE, self._inputs, self._run, (RANGES,))

    @property
    def ranges(self) -> Path:
        """Where the ranges are, or will be."""
        return self._place / RANGES

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to run."""
        makes_all = self.store.policy in {CachePolicy.OFF, CachePolicy.REDO}
        return not makes_all and self.store.find(CALIBRATE, self.stage.key) is not None

    def check(self) -> None:
        """Refuse what cannot be calibrated before anything is done.

        Raises:
            EnvironmentLacks: The extra ``calib`` is not installed.
            InputError: The model or the texts cannot be used.
        """
        if missing := missing_packages():
            raise EnvironmentLacks(
                f"calibration needs {', '.join(missing)}, which is not installed", hint=INSTALL
            )
        _ = self._calibration

    @cached_property
    def _calibration(self) -> Calibration:
        with contract_words(_OPTIONS):
            return prepare(self.source, self.request)

    @cached_property
    def _inputs(self) -> dict[str, Any]:
        request, tokenizer = self.request, self.source.tokenizer_file
        return {
            "code": code_digest(),
            "source": {**source_digests(self.source), **digests([tokenizer] if tokenizer else [])},
            "for": request.purpose.value,
            "group_size": request.group_size,
            "calibration": {
                "column": request.data.column,
                "samples": request.samples,
                "max_length": request.max_tokens,
                "seed": request.seed,
                "unreached": request.unreached.value,
            },
            "texts": data_digests(request.data.path) or {"built in": content_key({"": texts.calibration()})},
            "versions": versions(),
        }

    @property
    def _place(self) -> Path:
        return self.store.path(CALIBRATE, content_key(self._inputs))

    def _run(self, out: Path) -> Mapping[str, Any]:
        # A build that is killed leaves this folder, and the next one goes on in it. By its name no other build uses
        # it, and `trtkit cache gc` takes it for what it is then.
        work = self._place.with_name(f".{self._place.name}")
        work.mkdir(parents=True, exist_ok=True)
        self.store.hold(work)
        file, resumed_at_layer = work / RANGES, None
        if not file.exists():
            with contract_words(_OPTIONS):
                resumed_at_layer = self._calibration.run(file, self.progress).resumed_at_layer
        told = json.loads(read_metadata(file)[METADATA])
        file.rename(out / RANGES)
        shutil.rmtree(work)
        names: tuple[str, ...] = (
            "for",
            "group_size",
            "data",
            "samples_asked",
            "samples_used",
            "texts_skipped",
            "tokens",
        )
        names += ("borrowed", "silent", "device")
        return {**{name: told[name] for name in names}, "resumed_at_layer": resumed_at_layer}


def missing_packages() -> list[str]:
    """Return what calibration lacks on this machine."""
    return [package for package in MODEL_PACKAGES if find_spec(package) is None]


def calibration_warnings(facts: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what a calibration's facts should make one think about."""
    counts = (facts[name] for name in _COUNTS)
    for each in (*sample_remarks(*counts), *layer_remarks(facts["borrowed"], facts["silent"])):
        yield replace(each, key=f"quantization.calibration.{each.key}", hint=in_words(each.hint, _OPTIONS))
