"""The stage that looks for SmoothQuant's alpha: checkpoints with some of them, judged by the gate's KL divergence."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtkit.canonical import content_key
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress, silent
from trtkit.checkpoint.staging import write_json
from trtkit.engine.manifest import code_digest
from trtkit.engine.store import Stage, Store
from trtkit.errors import InputError, StageError
from trtkit.flow.gate import GateOptions, run_gate
from trtkit.flow.inputs import versions
from trtkit.quantize.calibrate import texts
from trtkit.quantize.fingerprint import SOME, shared_part
from trtkit.quantize.gate.samples import MIN_SAMPLES, open_tokenizer, take_samples
from trtkit.quantize.smoothing import Alphas, SmoothingError

ALPHA = "alpha"
"""Name of the stage."""
AUTO = "auto"
ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""What is tried for all layers alike."""
KINDS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.proj")
"""What then gets one of its own, in steps of 0.1; the gate of an MLP has that of its other branch."""
_TABLE = "alpha.json"
_SAMPLES, _SAMPLE_TOKENS = 8, 512
_STEP = 0.1


@dataclass(frozen=True)
class Alpha:
    """The search as a stage of a build."""

    source: HfCheckpoint
    inputs: Mapping[str, Any]
    """What decides the checkpoints beside alpha."""
    write: Callable[[Alphas, Path], object]
    """Writes a checkpoint with one alpha for each kind of layer."""
    store: Store
    progress: Progress
    gate: GateOptions | None = None
    """What the build's own gate will ask."""

    def check(self) -> None:
        """Make sure that there is text to choose by.

        Raises:
            InputError: The gate reads nearly all of it, or a copy of it.
        """
        tokenizer = open_tokenizer(self.source)
        ids = tokenizer.encode(self._text, add_special_tokens=False).ids
        if len(ids) < MIN_SAMPLES * self._sample_tokens:
            message = f"the gate leaves {len(ids)} tokens of the built-in text, too few to choose alpha by"
            hint = "lower quantization.gate.samples, name quantization.gate.data, or give quantization.alpha a number"
            raise InputError(message, path=self.source.folder, hint=hint)
        asked = self.gate
        if asked is not None and asked.data is not None:
            read = take_samples(
                self.source, asked.data, count=asked.samples, length_tokens=asked.sample_tokens
            )
            if shared_part((tokenizer.decode(each) for each in read.sequences), [self._text]) >= SOME:
                hint = "leave quantization.gate.data out, or give quantization.alpha a number"
                raise InputError(
                    "alpha would be chosen by text that the gate reads", path=asked.data, hint=hint
                )

    @cached_property
    def _text(self) -> str:
        """Return the end of the built-in held-out text, of which the build's gate reads nothing.

        Of 92,461 characters the last quarter is some 11 samples of 512 tokens; the gate's 32 samples of 512 from the
        start end before it where a token has 4.23 characters or less, and otherwise a piece of it goes too.
        """
        text = texts.held_out()
        start = len(text) * 3 // 4
        if self.gate is not None and self.gate.data is None:
            read = take_samples(
                self.source, None, count=self.gate.samples, length_tokens=self.gate.sample_tokens
            )
            start = max(start, read.end or 0)
        return text[start:]

    @cached_property
    def _sample_tokens(self) -> int:
        return min(_SAMPLE_TOKENS, self.source.config.max_position_embeddings)

    @cached_property
    def stage(self) -> Stage:
        """Ranges → alphas, and a table of what each choice would lose."""
        inputs = {
            **self.inputs,
            "code": code_digest(),
            "alphas": list(ALPHAS),
            "text": content_key({"": self._text, "samples": _SAMPLES, "tokens": self._sample_tokens}),
            "versions": versions(),
        }
        return Stage(ALPHA, inputs, self._run, (_TABLE,))

    def found(self) -> Alphas:
        """Return what the product says."""
        path = self.store.path(ALPHA, self.stage.key) / _TABLE
        alphas: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["alpha"]
        return alphas

    def _run(self, out: Path) -> Mapping[str, Any]:
        # A build that is killed leaves this folder, and the next one goes on in it, as with a calibration.
        place = self.store.path(ALPHA, self.stage.key)
        work = place.with_name(f".{place.name}")
        work.mkdir(parents=True, exist_ok=True)
        self.store.hold(work)
        tried = Tried(work / _TABLE, lambda alphas: self._judge(alphas, work), self.progress)
        alphas = search(tried.loss)
        if tried.loss(alphas) == math.inf:
            hint = "look for outliers in the ranges, or use a format without smoothing: fp8, int8-wo"
            raise StageError(
                "no alpha gives weights and logits that are finite", path=self.source.folder, hint=hint
            )
        facts = {"alpha": alphas, "kl": tried.table, "resumed_at": tried.resumed_at}
        write_json(out / _TABLE, facts)
        shutil.rmtree(work)
        return facts

    def _judge(self, alphas: Alphas, work: Path) -> float | None:
        """Return the KL divergence of a checkpoint with these alphas; None if it has none, or its weights no values."""
        text, candidate = work / "text.txt", work / "candidate"
        shutil.rmtree(candidate, ignore_errors=True)
        text.write_text(self._text, encoding="utf-8")
        options = GateOptions(data=text, samples=_SAMPLES, sample_tokens=self._sample_tokens)
        try:
            self.write(alphas, candidate)
        except SmoothingError:
            return None
        report = run_gate(self.source, candidate, options, self.store, silent)
        shutil.rmtree(candidate)
        return None if report.non_finite_samples else float(report.summary()["measures"]["KL"]["value"])


def search(loss: Callable[[Alphas], float]) -> Alphas:
    """Return the best alpha for all, and from there for each kind of layer in turn, as long as it gets better."""
    best: Alphas = min((dict.fromkeys(KINDS, alpha) for alpha in ALPHAS), key=loss)
    for kind in KINDS:
        for step in (_STEP, -_STEP):
            near = {**best, kind: round(best[kind] + step, 1)}
            while 0 <= near[kind] <= 1 and loss(near) < loss(best):
                best, near = near, {**near, kind: round(near[kind] + step, 1)}
    return best


class Tried:
    """What was tried, on disk from the moment it is known."""

    def __init__(self, path: Path, judge: Callable[[Alphas], float | None], progress: Progress) -> None:
        self._path = path
        self._judge = judge
        self._progress = progress
        self.table: dict[str, float | None] = _read_table(path)
        """KL divergence by what :func:`spelled` calls the alphas; None for logits that are not finite."""
        self.resumed_at = len(self.table)

    def loss(self, alphas: Alphas) -> float:
        """Return the KL divergence, infinity where there is none; nothing is judged twice."""
        name = spelled(alphas)
        if name not in self.table:
            self._progress(ALPHA, len(self.table), None)
            self.table[name] = self._judge(alphas)
            part = self._path.with_suffix(".part")
            write_json(part, self.table)
            part.replace(self._path)
        found = self.table[name]
        return math.inf if found is None else found


def _read_table(path: Path) -> dict[str, float | None]:
    """Return what a search that was ended has left; what a machine that lost its power left damaged is judged anew."""
    with suppress(OSError, ValueError):
        table = json.loads(path.read_text("utf-8"))
        if isinstance(table, dict) and all(
            each is None or isinstance(each, float | int) for each in table.values()
        ):
            return table
    return {}


def spelled(alphas: Alphas) -> str:
    """Return one number, or four in the order of :data:`KINDS`."""
    values = [f"{alphas[kind]:g}" for kind in KINDS]
    return values[0] if len(set(values)) == 1 else " ".join(values)
