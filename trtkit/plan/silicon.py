"""Speed from fitted step times: of this engine when it was measured, of the same model in the silicon table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import GPUS, Gpu
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.catalog.silicon import Cell, silicon_table
from trtkit.plan.types import Basis, QuantPlan

Three = tuple[float, float, float]


@dataclass(frozen=True)
class Fit:
    """Times that grow as those of an engine do."""

    source: str
    prefill: Three
    step: Three
    stages: int = 1
    basis: Basis = Basis.SILICON

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
    basis: Basis = Basis.GUESS


PEAK = Share(1.0, 1.0, "1 (nothing slower than the data sheet)")


@dataclass(frozen=True)
class Floor:
    """The least time of one layer."""

    prefill_ms: float
    step_ms: float
    text: str


NO_FLOOR = Floor(0.0, 0.0, "")


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


def peak_rate(gpu: Gpu, weights: str) -> float:
    """Return the operations per second of the products of a format; of 16 bits where its own rate is not known."""
    rates = {"fp16": gpu.fp16_tflops, "int8": gpu.int8_tops, "fp8": gpu.fp8_tflops}
    return 1e12 * (rates[WEIGHTS[weights].compute] or gpu.fp16_tflops)


def share_of_peak(gpu: str, weights: str) -> Share:
    """Return what part of the roofline the table's models reach on this GPU in this format, or what comes nearest.

    A share that is borrowed is the lowest of those that come nearest: of formats of the same rate on this GPU, of its
    other formats, of the same format elsewhere, of anything. So no guess is faster than what it was taken from.
    """
    shares = silicon_table().shares
    known = shares.get(gpu, {})
    if weights in known:
        prefill, step = known[weights]
        text = f"{prefill:.2f} and {step:.2f}, which {gpu} reaches with {weights} weights"
        return Share(prefill, step, text, Basis.ROOFLINE)
    rate = peak_rate(GPUS[gpu], weights)
    candidates = (
        (
            "with formats of the same rate",
            gpu,
            [s for n, s in known.items() if peak_rate(GPUS[gpu], n) == rate],
        ),
        ("with other formats", gpu, list(known.values())),
        (
            f"with {weights} weights",
            "another GPU",
            [row[weights] for row in shares.values() if weights in row],
        ),
        ("with other formats", "another GPU", [each for row in shares.values() for each in row.values()]),
    )
    for what, where, found in candidates:
        if found:
            prefill, step = min(each[0] for each in found), min(each[1] for each in found)
            text = f"{prefill:.2f} and {step:.2f}, the lowest that {where} reaches {what}"
            return Share(prefill, step, text)
    return PEAK


@cache
def floor_of(gpu: str) -> Floor:
    """Return the quickest layer of the table, of this GPU or, where it has none, of all: below it nothing is known."""
    cells = silicon_table().cells
    own = [cell for cell in cells if cell.gpu == gpu]
    if not cells:
        return NO_FLOOR
    prefill, step = (_quickest(own or cells, term) for term in ("prefill_ms", "step_ms"))
    return Floor(
        prefill, step, f", a layer no quicker than the table's quickest ({1000 * step:.0f} us a step)"
    )


def _quickest(cells: Iterable[Cell], term: str) -> float:
    """Return the constant term of the cell whose layers are quickest, for one layer."""
    return min(float(getattr(cell, term)[0]) / int(cell.shape.partition("x")[0]) for cell in cells)
