"""Where output goes: results to stdout, everything else to stderr."""

from __future__ import annotations

import asyncio
import enum
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from trtkit.errors import ContractError, Problem, TrtkitError, VerificationError

if TYPE_CHECKING:
    from trtkit.contract import ContractFile

ProgressCallback = Callable[[str, int, "int | None"], None]
"""``(what, done, total)``; ``total`` is None while unknown."""
SIMULATION = "simulation"
_COUNTS_STEPS = frozenset({"engine", SIMULATION})
"""First words of work whose amounts are no bytes."""
_TELL_EVERY_S = 10.0
"""Between two lines about one step, where there is no terminal for a bar."""


class Output(str, enum.Enum):
    """How results are written to stdout."""

    TEXT = "text"
    JSON = "json"


def say(text: str) -> None:
    """Tell a person something that is not a result."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def show(text: str) -> None:
    """Write a result for a person."""
    write(f"{text}\n")


def write(text: str) -> None:
    """Write a piece of a result that goes on in the same line."""
    try:
        print(text, end="", flush=True)  # noqa: T201
    except OSError as error:
        error.filename = "stdout"
        # Python flushes what stdout still holds when it ends, and would fail again.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        raise


def show_json(document: Any) -> None:
    """Write a result for a program: one JSON document."""
    show(json.dumps(document, indent=2, default=str))


def warn(warnings: Iterable[Problem]) -> None:
    """Show what is odd but does not stop the work."""
    for warning in warnings:
        say(f"warning: {warning}")


def read_contract(path: Path, overrides: Sequence[str]) -> ContractFile:
    """Read a contract, and tell what is odd about it.

    Raises:
        InputError: It is wrong.
    """
    from trtkit.contract import load_contract

    file = load_contract(path, overrides)
    warn(file.warnings)
    return file


def listening(host: str, grpc_port: int, metrics_port: int) -> str:
    """Return where a proxy is."""
    return f"proxy: grpc {host}:{grpc_port}, metrics http://{host}:{metrics_port}/metrics"


def many(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 file``, ``2 files``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def fail(error: TrtkitError, result: Mapping[str, Any]) -> NoReturn:
    """End a verb that has both a result and an error: to a program they are one document."""
    # Its exit code is told even when nobody reads what it is.
    with suppress(BrokenPipeError):
        report_error(error, result)
    raise typer.Exit(error.exit_code)


def explain(error: TrtkitError) -> None:
    """Explain an error to a person."""
    say(f"error: {error}" if "\n" not in str(error) else f"error:\n{error}")


def report_error(error: TrtkitError, result: Mapping[str, Any] | None = None) -> None:
    """Explain an error on stderr; with ``--output json`` also as a document on stdout, beside the result."""
    explain(error)
    tell_program(error, result)


def tell_program(error: TrtkitError, result: Mapping[str, Any] | None = None) -> None:
    """Write an error, beside the result, as the document that ``--output json`` promises."""
    if _wants_json(sys.argv):
        problems = [vars(problem) for problem in error.problems] if isinstance(error, ContractError) else []
        fields = {
            "message": error.message,
            "path": error.path,
            "hint": error.hint,
            "exit_code": error.exit_code,
        }
        details = error.details if isinstance(error, VerificationError) else {}
        show_json({**details, **(result or {}), "error": {**fields, "problems": problems}})


def _wants_json(argv: list[str]) -> bool:
    return "--output=json" in argv or ("--output", "json") in pairwise(argv)


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """Show long work on stderr: a bar with rate and time left on a terminal, one line per step elsewhere."""
    if sys.stderr.isatty():
        with _bars() as callback:
            yield callback
    else:
        yield plain_progress()


def plain_progress(clock: Callable[[], float] = time.monotonic) -> ProgressCallback:
    """Return a callback that says when a step begins, how far a long one is, and how long it took."""
    started_s: dict[str, float] = {}
    told_s: dict[str, float] = {}
    ended = set()

    def update(what: str, done: int, total: int | None) -> None:
        now_s = clock()
        if what not in started_s:
            started_s[what] = told_s[what] = now_s
            say(f"{what} ...")
        took_s = now_s - started_s[what]
        if total is None or what in ended:
            return
        if done >= total:
            say(f"{what}: done in {took_s:.1f} s")
            ended.add(what)
        elif done and now_s - told_s[what] >= _TELL_EVERY_S:
            say(f"{what}: {done / total:.0%}, about {took_s * (total - done) / done:.0f} s left")
            told_s[what] = now_s

    return update


@contextmanager
def _bars() -> Iterator[ProgressCallback]:
    from rich.console import Console, RenderableType
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    class Counted(ProgressColumn):
        """Shows a column for work that counts bytes, or also for such that counts steps; else it is one step of one."""

        def __init__(self, column: ProgressColumn, *, only_bytes: bool = True) -> None:
            super().__init__()
            self._column = column
            self._only_bytes = only_bytes

        def render(self, task: Task) -> RenderableType:
            counts_steps = task.description.split(" ")[0] in _COUNTS_STEPS
            shows = (task.total or 0) > 1 and not (self._only_bytes and counts_steps)
            return self._column.render(task) if shows else ""

    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        *(Counted(column()) for column in (DownloadColumn, TransferSpeedColumn)),
        Counted(TimeRemainingColumn(), only_bytes=False),
    )
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def update(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield update


def run_until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Run to the end, or until SIGINT or SIGTERM cancels the work; return whether it came to its end."""

    async def run() -> None:
        task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel if task else bool)
        await work

    try:
        asyncio.run(run())
    except asyncio.CancelledError:
        return False
    return True
