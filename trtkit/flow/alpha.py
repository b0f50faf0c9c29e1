"""The stage that looks for SmoothQuant's alpha: checkpoints with some of them, judged by the gate's KL divergence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress, silent
from trtkit.checkpoint.staging import write_json
from trtkit.engine.manifest import code_digest, content_key
from trtkit.engine.store import Stage, Store
from trtkit.errors import StageError
from trtkit.flow.gate import GateOptions, run_gate
from trtkit.flow.inputs import versions
from trtkit.quantize.calibrate import texts

ALPHA = "alpha"
"""Name of the stage."""
AUTO = "auto"
ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""What is tried."""
_TABLE = "alpha.json"
_SAMPLES, _SAMPLE_TOKENS = 8, 512


@dataclass(frozen=True)
class Alpha:
    """The search as a stage of a build."""

    source: HfCheckpoint
    inputs: Mapping[str, Any]
    """What decides the checkpoints beside alpha."""
    write: Callable[[float, Path], object]
    """Writes a checkpoint with one alpha."""
    store: Store
    progress: Progress

    @cached_property
    def stage(self) -> Stage:
        """Ranges → alpha, and a table of what each would lose."""
        inputs = {
            **self.inputs,
            "code": code_digest(),
            "alphas": list(ALPHAS),
            "text": content_key({"": _text(), "samples": _SAMPLES, "tokens": _SAMPLE_TOKENS}),
            "versions": versions(),
        }
        return Stage(ALPHA, inputs, self._run, (_TABLE,))

    def found(self) -> float:
        """Return what the product says."""
        path = self.store.path(ALPHA, self.stage.key) / _TABLE
        return float(json.loads(path.read_text(encoding="utf-8"))["alpha"])

    def _run(self, out: Path) -> Mapping[str, Any]:
        text, candidate = out / "text.txt", out / "candidate"
        text.write_text(_text(), encoding="utf-8")
        options = GateOptions(data=text, samples=_SAMPLES, sample_tokens=_SAMPLE_TOKENS)
        kl: dict[str, float] = {}
        for number, alpha in enumerate(ALPHAS):
            self.progress(ALPHA, number, len(ALPHAS))
            self.write(alpha, candidate)
            report = run_gate(self.source, candidate, options, self.store, silent)
            if not report.non_finite_samples:
                kl[str(alpha)] = report.summary()["measures"]["KL"]["value"]
            shutil.rmtree(candidate)
        text.unlink()
        self.progress(ALPHA, len(ALPHAS), len(ALPHAS))
        if not kl:
            hint = "look for outliers in the ranges, or use a format without smoothing: fp8, int8-wo"
            raise StageError("no alpha gives logits that are finite", path=self.source.folder, hint=hint)
        facts = {"alpha": float(min(kl, key=kl.__getitem__)), "kl": kl}
        write_json(out / _TABLE, facts)
        return facts


def _text() -> str:
    """Return the end of the built-in held-out text: a gate without data of its own reads 32 samples from its start.

    Of 92,461 characters, some 45 samples of 512 tokens, that leaves the last quarter unread.
    """
    text = texts.held_out()
    return text[len(text) * 3 // 4 :]
