"""``trtkit build``: every stage from checkpoint to model repository."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.cli.calibrate import calibration_progress
from trtkit.cli.console import Output, read_contract, say, show, show_json, warn
from trtkit.cli.options import CacheOption, ContractArgument, OutputOption, PoolOption, SetOption
from trtkit.contract.formats import BackendName
from trtkit.errors import InputError

if TYPE_CHECKING:
    from trtkit.engine.store import Product
    from trtkit.flow.build import BuildOutcome, Step


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("build")(build)


def build(
    contract: ContractArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Also put the repository there, each pool's below by its name.", metavar="DIR"
        ),
    ] = None,
    overrides: SetOption = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show stages, hits and files; write nothing.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each stage is no hit; write nothing.")
    ] = False,
    in_container: Annotated[
        bool,
        typer.Option("--in-container", help="Back end tensorrt: compile in NVIDIA's container, by docker."),
    ] = False,
    mpirun: Annotated[
        bool, typer.Option("--mpirun", help="Back end tensorrt: a process of mpirun for each rank.")
    ] = False,
    pool: PoolOption = None,
    cache: CacheOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Build engine and model repository, of each pool its own; what did not change comes from the store."""
    from trtkit.engine.store import CachePolicy, Store
    from trtkit.engine.tensorrt.backend import Builder
    from trtkit.flow.build import build as run_build
    from trtkit.flow.build import preview
    from trtkit.flow.repository import place_of
    from trtkit.triton.parts import deliver

    file = read_contract(contract, overrides)
    if (in_container or mpirun) and file.contract.engine.backend is not BackendName.TENSORRT:
        message = f"the {file.contract.engine.backend.value} back end runs no builder of TensorRT-LLM"
        raise InputError(message, hint="leave out --in-container and --mpirun")
    if out is not None and file.contract.engine.backend is BackendName.EDGELLM:
        raise InputError("the edgellm back end makes no model repository", hint="leave out -o")
    store = Store(policy=CachePolicy(cache.value) if cache else None, tell=say)
    documents: dict[str, Any] = {}
    for name, each in file.of_pools(pool).items():
        if name and output is Output.TEXT:
            show(f"pool {name}")
        if dry_run or explain:
            steps, warnings = preview(each, store, Builder(in_container, mpirun))
            warn(warnings)
            documents[name] = _show_steps(steps, output, explain=explain)
            continue
        with calibration_progress() as report, _last_line() as tell:
            outcome = run_build(each, store, report, Builder(in_container, mpirun, tell))
        warn(outcome.plan.warnings)
        if out is not None:
            place = place_of(out, name, pool)
            deliver(outcome.repository, place)
            outcome = replace(outcome, repository=place)
        documents[name] = _show_outcome(outcome, output)
    if output is Output.JSON:
        show_json({"schema": 1, **documents.get("", {"pools": documents})})


def _show_steps(steps: Sequence[Step], output: Output, *, explain: bool) -> dict[str, Any]:
    if output is Output.TEXT:
        show("\n".join(line for step in steps for line in _lines(step, explain=explain)))
    return {"stages": [asdict(step) for step in steps]}


def _show_outcome(outcome: BuildOutcome, output: Output) -> dict[str, Any]:
    if output is Output.TEXT:
        for product in outcome.products:
            state = "hit" if product.hit else f"{product.seconds:.1f} s"
            show(f"{product.stage:<13}{state:<10}{product.path}")
            for line in _figures(product):
                show(f"{'':<13}{line}")
        show(f"\n{_label(outcome)}")
    products = [asdict(product) for product in outcome.products]
    served = outcome.products[-1].stage == "repo"
    return {
        "repository": outcome.repository if served else None,
        "stages": products,
        "plan": asdict(outcome.plan),
    }


def _figures(product: Product) -> Iterator[str]:
    """Yield what a gate has measured, and what a search for alpha has chosen."""
    measures = product.facts.get("measures", {})
    if measures:
        deciding = sorted(measures.items(), key=lambda each: each[1]["limit"] is None)
        yield ", ".join(_figure(name, **each) for name, each in deciding)
    if product.stage == "alpha":
        yield "alpha " + ", ".join(f"{kind} {alpha:g}" for kind, alpha in product.facts["alpha"].items())


def _figure(name: str, *, value: float | None, limit: float | None, **_: Any) -> str:
    found = "no number" if value is None else f"{value:.4g}"
    return f"{name} {found}" + ("" if limit is None else f" (limit {limit:.4g})")


def _label(outcome: BuildOutcome) -> str:
    """Return where the product is, and what is left to do where it is no repository."""
    if outcome.products[-1].stage == "repo":
        return f"model repository: {outcome.repository}"
    engine = next(each for each in reversed(outcome.products) if each.stage == "compile")
    return f"no repository: copy {engine.path} to the machine with the GPU, and run its build.sh there"


@contextmanager
def _last_line() -> Iterator[Callable[[str], None]]:
    """Show the last line of another program's log on a terminal; elsewhere only where that log is."""
    from trtkit.engine.tensorrt.backend import LOG_WORDS

    if not sys.stderr.isatty():
        yield lambda line: say(line) if line.startswith(LOG_WORDS) else None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), transient=True) as live:

        def tell(line: str) -> None:
            live.update(Text(line, style="dim", no_wrap=True, overflow="ellipsis"))

        yield tell


def _lines(step: Step, *, explain: bool) -> list[str]:
    """Return a dry run's lines: what happens, and the files or the reasons."""
    below = step.why if explain else (", ".join(step.files), *map(shlex.join, step.commands))
    return [f"{step.stage:<13}{step.state:<10}{step.path}", *(f"{'':<23}{each}" for each in below)]
