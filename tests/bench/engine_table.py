"""``make engine``: SmolLM2 as a TensorRT engine in each format, on a machine without a GPU, and what each has cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from account import MB
from rich.box import SIMPLE
from rich.table import Table
from screen import screen

from trtkit.catalog.formats import BACKENDS
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import silent
from trtkit.cli.console import plain_progress
from trtkit.contract import load_contract
from trtkit.engine.keys import COMPILE, CONVERT
from trtkit.engine.store import Store
from trtkit.errors import TrtkitError
from trtkit.flow.build import build
from trtkit.flow.gate import GateOptions, run_gate

_CONTRACT = Path("build_configs/smollm2-135m__none-kv_auto__rtx-pro-6000-tp1.yaml")
_SINCE_ADA = ("fp8", "fp8-rowwise")
_CALIBRATED = ("int8-sq", "fp8", "int4-awq")
_RESULTS = Path("build/bench")


@dataclass(frozen=True)
class Row:
    """One format."""

    weights: str
    checkpoint_bytes: int
    engine_bytes: int
    kl: float
    """Nats per token between the source and the graph that was compiled; the worse end of a 95 % interval."""
    top1: float
    """Share of tokens that both put first; the worse end too."""
    sms: list[int]
    compile_s: float


def main(
    weights: Annotated[list[str] | None, typer.Option(help="Repeatable; all formats without it.")] = None,
    samples: Annotated[int, typer.Option(min=2, help="Pieces of text that the graph is judged by.")] = 8,
    calibration: Annotated[int, typer.Option(min=1, help="Pieces of text to calibrate with.")] = 32,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = _RESULTS,
) -> None:
    """Build each format and print the table."""
    known = BACKENDS["rtx"].weights
    if unknown := set(weights or ()) - set(known):
        raise typer.BadParameter(f"there is no format {', '.join(unknown)}, only {', '.join(known)}")
    rows = []
    try:
        for name in weights or known:
            screen.print(f"[bold]{name}")
            rows.append(_row(name, samples, calibration))
    except TrtkitError as error:
        screen.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(error.exit_code) from None
    out.mkdir(parents=True, exist_ok=True)
    document = {"schema": 1, "rows": [asdict(row) for row in rows]}
    (out / "engine.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _show(rows)


def _row(weights: str, samples: int, calibration: int) -> Row:
    store, report = Store(), plain_progress()
    file = load_contract(_CONTRACT, list(_overrides(weights, calibration)))
    outcome = build(file, store, report)
    products = {product.stage: product for product in outcome.products}
    facts = products[COMPILE].facts
    options = GateOptions(samples=samples, sample_tokens=256)
    source = HfCheckpoint.open(outcome.source)
    judged = run_gate(source, products[COMPILE].path, options, store, silent)
    kl, top1 = (measure.decisive for measure in judged.measures[:2])
    return Row(
        weights=weights,
        checkpoint_bytes=products[CONVERT].facts["bytes"],
        engine_bytes=facts["engine_bytes"],
        kl=kl,
        top1=top1,
        sms=list(facts["engine_sms"]),
        compile_s=facts["graph_s"] + facts["compile_s"],
    )


def _overrides(weights: str, calibration: int) -> Iterator[str]:
    yield f"quantization.weights={weights}"
    yield f"engine.targets={[89, 120] if weights in _SINCE_ADA else [80, 86, 89, 120]}"
    if weights in _CALIBRATED:
        yield f"quantization.calibration.samples={calibration}"


def _show(rows: list[Row]) -> None:
    heads = ("format", "checkpoint MB", "engine MB", "KL", "top-1", "one engine for SM", "compiled in")
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    screen.print(table)
    screen.print("KL: source to the very graph that was compiled, nats per token on held-out text")


def _cells(row: Row) -> tuple[Any, ...]:
    return (
        row.weights,
        f"{row.checkpoint_bytes / MB:.0f}",
        f"{row.engine_bytes / MB:.0f}",
        f"{row.kl:.4f}",
        f"{row.top1:.3f}",
        " ".join(map(str, row.sms)),
        f"{row.compile_s:.0f} s",
    )


if __name__ == "__main__":
    typer.run(main)
