"""Speed from fitted step times: of this engine when it was measured, of the same model in the silicon table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.catalog.silicon import silicon_table
from trtkit.errors import InputError
from trtkit.plan.types import QuantPlan

Three = tuple[float, float, float]
_KEYS = {"prefill_ms", "step_ms", "source"}


@dataclass(frozen=True)
class Fit:
    """Times that grow as those of an engine do."""

    source: str
    prefill: Three
    step: Three
    stages: int = 1

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of one prompt."""
        base, linear, square = self.prefill
        return base + linear * tokens + square * tokens * tokens

    def step_ms(self, batch: int, context_tokens: float) -> float:
        """Return the time of one token for each request of the batch."""
        base, each, kv = self.step
        return base + each * batch + kv * batch * context_tokens


@dataclass(frozen=True)
class Share:
    """What part of the roofline engines of a kind reach."""

    prefill: float
    step: float
    text: str


PEAK = Share(1.0, 1.0, "1 (nothing slower than the data sheet)")


def measured_fit(raw: Any, *, file: str = "") -> Fit:
    """Return a measurement of this very engine: ``{"source": ..., "prefill_ms": [a, b, c], "step_ms": [a, b, c]}``.

    Raises:
        InputError: It is not of that form.
    """
    if not isinstance(raw, Mapping) or raw.keys() != _KEYS or not isinstance(raw["source"], str):
        raise InputError(f"a calibration has exactly the keys {', '.join(sorted(_KEYS))}", path=file)
    numbers = {key: _three(raw[key], key, file) for key in ("prefill_ms", "step_ms")}
    return Fit(f"measured on this engine: {raw['source']}", numbers["prefill_ms"], numbers["step_ms"])


def _three(value: Any, key: str, file: str) -> Three:
    fine = isinstance(value, list) and len(value) == 3
    if (
        not fine
        or not all(isinstance(each, int | float) and 0 <= each < 1e9 for each in value)
        or not sum(value)
    ):
        raise InputError(f"{key} must be three numbers, none negative and not all 0", path=file)
    return (float(value[0]), float(value[1]), float(value[2]))


def shape_of(model: ModelConfig) -> str:
    """Return the sizes that a model's speed depends on, as one word: models of the same sizes are equally fast."""
    shape = (
        f"{model.num_layers}x{model.hidden_size}-h{model.num_heads}/{model.num_kv_heads}x{model.head_size}"
        f"-f{model.intermediate_size}-v{model.vocab_size}"
    )
    moe = model.moe
    return (
        shape
        if moe is None
        else f"{shape}-e{moe.experts_per_token}/{moe.num_experts}x{moe.intermediate_size}"
    )


def find_fit(model: ModelConfig, gpu: str, ranks: Parallelism, quantization: QuantPlan) -> Fit | None:
    """Return the silicon table's cell for a model of these sizes, or None."""
    if ranks.pp > 1 or ranks.moe_ep > 1:
        return None
    wanted = (gpu, shape_of(model), quantization.weights, quantization.kv_cache, ranks.tp)
    table = silicon_table()
    for cell in table.cells:
        if wanted == (cell.gpu, cell.shape, cell.weights, cell.kv_cache, cell.tp):
            return Fit(f"silicon table ({table.source})", cell.prefill_ms, cell.step_ms)
    return None


def share_of_peak(gpu: str, weights: str) -> Share:
    """Return what part of the roofline the table's models reach on this GPU in this format, or what comes nearest."""
    shares = silicon_table().shares
    known = shares.get(gpu, {})
    if weights in known:
        prefill, step = known[weights]
        return Share(
            prefill, step, f"{prefill:.2f} and {step:.2f}, which {gpu} reaches with {weights} weights"
        )
    same = list(known.values()) or [each for formats in shares.values() for each in formats.values()]
    if not same:
        return PEAK
    prefill, step = median(each[0] for each in same), median(each[1] for each in same)
    what = f"{gpu} reaches with other formats" if known else "other GPUs reach"
    return Share(prefill, step, f"{prefill:.2f} and {step:.2f}, which {what}")
