"""``make bench-convert``: what conversions cost, next to what `cp` costs with the same files in the same minutes."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import report
import typer
from account import CASES, GB, Case, Result, verdicts
from runs import ConversionFailedError, measure, needed_bytes
from screen import screen
from synthetic import SyntheticModel

from trtkit.checkpoint.staging import scratch_folder

_SIZES_GB, _QUICK_GB = (2.0, 8.0), (0.25, 1.0)
_NAMES = {case.name: case for case in CASES}
_RESULTS = Path("build/bench")


def main(
    gb: Annotated[
        list[float] | None, typer.Option(help="Size of a model, repeatable; 2 and 8 without it.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help=f"Repeatable: {', '.join(_NAMES)}; all without it.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each case; the best one counts.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Models of 0.25 and 1 GB.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the results, and of the models meanwhile.")] = _RESULTS,
) -> None:
    """Measure conversions against their goals; the exit status is 1 when one is missed."""
    if unknown := set(case or ()) - set(_NAMES):
        raise typer.BadParameter(f"there is no case {', '.join(unknown)}, only {', '.join(_NAMES)}")
    models = [SyntheticModel(round(size * GB)) for size in gb or (_QUICK_GB if quick else _SIZES_GB)]
    results = _measure(models, [_NAMES[name] for name in case or _NAMES], rounds, out)
    judged = verdicts(results)
    report.save(results, judged, out)
    report.show(results, judged, screen)
    raise typer.Exit(int(not all(verdict.met for verdict in judged)))


def _measure(models: Sequence[SyntheticModel], cases: Sequence[Case], rounds: int, out: Path) -> list[Result]:
    out.mkdir(parents=True, exist_ok=True)
    needed, free = max(needed_bytes(model, cases) for model in models), shutil.disk_usage(out).free
    if needed > free:
        screen.print(
            f"{out}: {needed / GB:.1f} GB are needed, {free / GB:.1f} GB are free; choose another --out"
        )
        raise typer.Exit(4)
    signal.signal(signal.SIGTERM, _stop)  # which would leave the models
    try:
        with scratch_folder(out / "models") as scratch, screen.status("") as status:
            steps = [
                measure(each, cases, rounds=rounds, scratch=scratch, tell=status.update) for each in models
            ]
    except ConversionFailedError as error:
        screen.print(f"the conversion of {error} failed; there is nothing to compare")
        raise typer.Exit(5) from None
    return [result for step in steps for result in step]


def _stop(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(main)
