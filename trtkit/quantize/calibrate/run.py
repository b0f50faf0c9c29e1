"""The calibration itself: layer by layer, sample by sample."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.canonical import content_key
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress, silent
from trtkit.errors import EnvironmentLacks
from trtkit.quantize.act_range import METADATA
from trtkit.quantize.calibrate.experts import borrow
from trtkit.quantize.calibrate.gram import Grams
from trtkit.quantize.calibrate.head import head_ranges
from trtkit.quantize.calibrate.layers import ModelLayers
from trtkit.quantize.calibrate.needs import Needs, check_memory, estimate, give_back_memory
from trtkit.quantize.calibrate.ranges import KvRecorder, Ranges, linear_modules, recording, rows_of
from trtkit.quantize.calibrate.request import Request, check_settings, choose_group, describe
from trtkit.quantize.calibrate.rotation import keys_before_rotation, watching_key_norm
from trtkit.quantize.calibrate.samples import SampleSet, draw
from trtkit.quantize.calibrate.search import search_int4
from trtkit.quantize.calibrate.skeleton import Skeleton
from trtkit.quantize.calibrate.state import HiddenStates, State, check_place, opened

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class CalibrationReport:
    """What a calibration wrote."""

    file: Path
    seconds: float
    resumed_at_layer: int
    """0 for a run from the start."""
    unreached: tuple[str, ...]
    """Layers of experts that no token came to."""
    silent: tuple[str, ...]
    """Layers that nothing but zeros went into: what is before them has been pruned away."""
    description: Mapping[str, Any]


@dataclass(frozen=True)
class Calibration:
    """A calibration that has been checked: all that is left is to run it."""

    source: HfCheckpoint
    request: Request
    layers: ModelLayers
    samples: SampleSet
    group_size: int | None

    @property
    def needs(self) -> Needs:
        """Memory and disk that it takes."""
        return estimate(self.layers, self.samples, self.group_size)

    def run(self, out: Path, progress: Progress = silent) -> CalibrationReport:
        """Write ``out``; go on where an earlier run of the same calibration ended.

        Raises:
            InputError: Something is NaN or infinite, or no token came to an expert; the place holds something else
                or cannot be written to.
            EnvironmentLacks: Memory or disk do not suffice.
        """
        import torch

        started_s = time.monotonic()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        out = out.resolve()  # through a link, which stays
        check_place(out, self.source.folder)
        check_memory(self.needs, device, out)
        description = {
            **describe(self.source, self.layers, self.request, self.samples, self.group_size),
            "device": device.type,
        }
        with opened(out, _key(description), self._hidden_states) as state:
            first = state.next_stage
            try:
                _Run(self, Skeleton(self.source, device), state, progress).all_from(first)
            except torch.OutOfMemoryError as error:
                hint = "run it again with a smaller --max-length, or on the CPU: CUDA_VISIBLE_DEVICES="
                raise EnvironmentLacks("the GPU's memory does not suffice", hint=hint) from error
            notes = {"borrowed": state.notes("borrowed"), "silent": state.notes("silent")}
            metadata = {METADATA: json.dumps({**description, **notes})}
            state.gather(self.layers.config.num_layers + 1, metadata, out)
        seconds = time.monotonic() - started_s
        told = {name: tuple(each) for name, each in notes.items()}
        return CalibrationReport(out, seconds, first, told["borrowed"], told["silent"], description)

    def _hidden_states(self, path: Path) -> HiddenStates:
        from trtkit.quantize.calibrate.weights import compute_dtype

        config = self.source.config
        lengths = [len(sample.ids) for sample in self.samples.samples]
        return HiddenStates(path, lengths, config.hidden_size, compute_dtype(config.dtype))


def _key(description: Mapping[str, Any]) -> str:
    """Return what decides the numbers: whatever the texts are called, these are their tokens."""
    return content_key({name: value for name, value in description.items() if name != "data"})


def prepare(source: HfCheckpoint, request: Request) -> Calibration:
    """Check everything that can be known before the model runs, and draw the samples.

    Raises:
        InputError: The source or the data cannot be used; nothing was written.
    """
    layers = ModelLayers(source)
    check_settings(request, layers)
    group_size = choose_group(request, layers)
    samples = draw(
        source, request.data, count=request.samples, max_tokens=request.max_tokens, seed=request.seed
    )
    return Calibration(source, request, layers, samples, group_size)


class _Run:
    """One walk through the layers that are left."""

    def __init__(
        self, calibration: Calibration, skeleton: Skeleton, state: State, progress: Progress
    ) -> None:
        self._calibration = calibration
        self._layers = calibration.layers
        self._samples = calibration.samples.samples
        self._skeleton = skeleton
        self._state = state
        self._progress = progress

    def all_from(self, first: int) -> None:
        """Run the layers from ``first`` on, and the head."""
        count = self._layers.config.num_layers
        for layer in range(first, count):
            found, unreached = self._layer(layer)
            notes = {"borrowed": unreached, "silent": _silent(found)}
            self._state.finish(layer, _arrays(found), notes)
            del found
            give_back_memory()
        if first <= count:
            name, weight = self._layers.head()
            tell = self._teller(count)
            hidden = self._state.before(count)
            found = head_ranges(self._skeleton, hidden, self._calibration.samples, name, weight)
            self._state.finish(count, _arrays(found), {})
            tell(len(self._samples))

    def _layer(self, layer: int) -> tuple[dict[str, torch.Tensor], list[str]]:
        """Return the tensors of a layer, and its experts that no token came to."""
        ranges, size = Ranges(), self._calibration.group_size
        groups = self._layers.groups(layer) if size else []
        grams = Grams({group.names[0]: group.width for group in groups}, self._skeleton.device)
        with self._skeleton.filled(layer) as (prefix, module):
            source_name = self._skeleton.source_name
            modules = {source_name(name): each for name, each in linear_modules(module, prefix).items()}
            with recording(ranges, modules, grams.see), watching_key_norm(ranges, module, prefix):
                self._samples_through(layer, prefix, ranges)
            kinds = self._layers.experts(layer)
            unreached = borrow(ranges.largest, kinds, self._calibration.request.unreached)
            counts = {name: each.float() for name, each in ranges.counts.items()}
            found = (
                ranges.largest
                | counts
                | {f"{name}|w": rows_of(each).abs().amax(1).float() for name, each in modules.items()}
            )
            found |= keys_before_rotation(self._layers, layer, prefix, found)
            if size:
                purpose = self._calibration.request.purpose
                found |= search_int4(purpose, groups, modules, grams.found, size)
        return found, unreached

    def _samples_through(self, layer: int, prefix: str, ranges: Ranges) -> None:
        cache = KvRecorder(ranges, prefix, self._layers.config.num_kv_heads)
        before, after = self._state.before(layer), self._state.after(layer)
        tell = self._teller(layer)
        for number, sample in enumerate(self._samples):
            ranges.origin, ranges.tokens = sample.origin, len(sample.ids)
            hidden = before.read(number).to(self._skeleton.device) if layer else None
            made = self._skeleton.run(layer, sample.ids, hidden, cache.cache())
            ranges.check(prefix, made)
            after.write(number, made)
            tell(number + 1)

    def _teller(self, stage: int) -> Callable[[int], None]:
        total = (self._layers.config.num_layers + 1) * len(self._samples)
        start = stage * len(self._samples)
        return lambda done: self._progress("calibrate", start + done, total)


def _silent(found: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the linear layers whose inputs were zeros in every sample."""
    return [name[:-2] for name, each in found.items() if f"{name[:-2]}|w" in found and _is_silent(name, each)]


def _is_silent(name: str, values: torch.Tensor) -> bool:
    return name.endswith("|x") and not bool(values.any())


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: values.cpu().contiguous().numpy() for name, values in tensors.items()}
