"""Write the catalog's table of step times anew, and print where the roofline parts from it.

``make silicon`` runs it; half a minute for each cell, of all GPUs or of those that are named. Answers are kept in
``build/bench/silicon.jsonl``, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.plan.published import FOLDER, published  # noqa: E402
from trtkit.catalog.gpus import GPUS  # noqa: E402
from trtkit.catalog.parallel import Parallelism  # noqa: E402
from trtkit.catalog.silicon import SILICON_FILE, Cell  # noqa: E402
from trtkit.errors import InputError  # noqa: E402
from trtkit.flow.silicon import VERSION, Silicon, requests_for  # noqa: E402
from trtkit.plan.fit import WORST, fit_prefill, fit_step  # noqa: E402
from trtkit.plan.resolve import quant_plan  # noqa: E402
from trtkit.plan.silicon import PEAK, shape_of  # noqa: E402
from trtkit.plan.speed import Roofline  # noqa: E402

ANSWERS = ROOT / "build" / "bench" / "silicon.jsonl"
GPUS_ASKED = ("a100-80", "l40s", "h100-sxm", "h200", "b200", "rtx-pro-6000")
RANKS = {
    "llama-3.1-8b": (1, 2),
    "llama-3.3-70b": (2, 4),
    "qwen3-8b": (1,),
    "qwen3-32b": (1, 2),
    "mixtral-8x7b": (2,),
}
FORMATS = (("none", "auto"), ("fp8", "fp8"), ("int8-sq", "auto"), ("int8-wo", "auto"), ("int4-awq", "auto"))
say = Console(width=160, highlight=False).print


def main() -> None:
    """Ask, fit, compare, write."""
    known = (
        {json.dumps(key): ms for key, ms in map(json.loads, ANSWERS.read_text().splitlines())}
        if ANSWERS.exists()
        else {}
    )
    with closing(Silicon()) as silicon:
        cells, shares = _cells(silicon, known)
    document = {
        "source": f"aiconfigurator {VERSION}, operators measured with TensorRT-LLM, a fit of 11 points a cell",
        "read_on": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "cells": [_plain(cell) for cell in cells],
        "shares": shares,
    }
    SILICON_FILE.write_text(_written(document))


def _cells(silicon, known) -> tuple[list[Cell], dict[str, Any]]:
    cells, ratios = [], {}
    for gpu, model, (weights, kv_cache) in product(sys.argv[1:] or GPUS_ASKED, RANKS, FORMATS):
        for tp in RANKS[model]:
            points = list(_points(silicon, model, gpu, tp, quant_plan(weights, kv_cache), known))
            if not points:
                continue
            cell = _cell(model, gpu, weights, kv_cache, tp, points)
            part = _shares(cell, model, points)
            ratios.setdefault((gpu, weights), []).append(part)
            kept = cell.worst <= WORST
            say(f"{model:<15}{gpu:<14}{weights:<10}tp{tp}  of the roofline: prefill {part[0]:.2f} step {part[1]:.2f}"
                  f"  fit off by {cell.worst:.0%}{'' if kept else ', left out'}")  # fmt: skip
            cells += [cell] if kept else []
    shares: dict[str, Any] = {}
    for (gpu, weights), parts in ratios.items():
        shares.setdefault(gpu, {})[weights] = [round(median(each[i] for each in parts), 2) for i in (0, 1)]
    return cells, shares


def _points(silicon, model, gpu, tp, quantization, known) -> Iterator[tuple[dict[str, Any], float]]:
    """Return a cell's requests with their times; nothing where aiconfigurator has none."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text((FOLDER / f"{model}.json").read_text())
        experts = published(model).moe is not None
        requests = requests_for(folder, gpu, tp, quantization, has_experts=experts)
        keys = [json.dumps({**each, "model_path": model}) for each in requests]
        missing = [each for each, key in zip(requests, keys, strict=True) if key not in known]
        if any(known.get(key, 0.0) is None for key in keys):
            return
        for request in missing:
            try:
                ms = silicon.ask(request)
            except InputError as error:
                _keep({**request, "model_path": model}, None, known)
                say(f"{model:<15}{gpu:<14}{quantization.weights:<10}tp{tp}  {error.message[:90]}")
                return
            _keep({**request, "model_path": model}, ms, known)
        times = [known.get(key) for key in keys]
        if None not in times:
            yield from zip(requests, times, strict=True)


def _keep(key: dict[str, Any], ms: float | None, known: dict[str, Any]) -> None:
    known[json.dumps(key)] = ms
    ANSWERS.parent.mkdir(parents=True, exist_ok=True)
    with ANSWERS.open("a") as file:
        file.write(json.dumps([key, ms]) + "\n")


def _cell(model, gpu, weights, kv_cache, tp, points) -> Cell:
    prefill = fit_prefill([(each["isl"], ms) for each, ms in points if each["mode"] == "static_ctx"])
    step = fit_step(
        [(each["batch_size"], each["isl"], ms) for each, ms in points if each["mode"] == "static_gen"]
    )
    worst = max(prefill.worst, step.worst)
    return Cell(
        gpu, model, shape_of(published(model)), weights, kv_cache, tp, prefill.terms, step.terms, worst
    )


def _shares(cell: Cell, model: str, points) -> tuple[float, float]:
    """Return what part of the bare roofline's speed the points reach, as medians."""
    bound = Roofline(
        published(model),
        GPUS[cell.gpu],
        Parallelism(cell.tp),
        quant_plan(cell.weights, cell.kv_cache),
        "bfloat16",
        PEAK,
    )
    prefill = [bound.prefill_ms(each["isl"]) / ms for each, ms in points if each["mode"] == "static_ctx"]
    step = [
        bound.step_ms(each["batch_size"], each["isl"]) / ms
        for each, ms in points
        if each["mode"] == "static_gen"
    ]
    return median(prefill), median(step)


def _plain(cell: Cell) -> dict[str, Any]:
    terms = {
        name: [float(f"{each:.4g}") for each in getattr(cell, name)] for name in ("prefill_ms", "step_ms")
    }
    return {**vars(cell), **terms, "worst": round(cell.worst, 3)}


def _written(document: dict[str, Any]) -> str:
    """Return the document with one cell a line."""
    rows = ",\n  ".join(json.dumps(cell) for cell in document["cells"])
    shares = ",\n  ".join(
        f"{json.dumps(gpu)}: {json.dumps(each)}" for gpu, each in document["shares"].items()
    )
    head = f'{{\n "source": {json.dumps(document["source"])},\n "read_on": "{document["read_on"]}",\n'
    return f'{head} "cells": [\n  {rows}\n ],\n "shares": {{\n  {shares}\n }}\n}}\n'


if __name__ == "__main__":
    main()
