"""``trtkit build``: every stage from checkpoint to model repository."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trtkit.cli.calibrate import calibration_progress
from trtkit.cli.console import Output, show, show_json, warn
from trtkit.cli.options import CacheOption, ContractArgument, OutputOption, SetOption

if TYPE_CHECKING:
    from trtkit.flow.build import Step


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("build")(build)


def build(
    contract: ContractArgument,
    overrides: SetOption = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show stages, hits and files; write nothing.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each stage is no hit; write nothing.")
    ] = False,
    cache: CacheOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Build engine and model repository; what did not change comes from the store."""
    from trtkit.contract import load_contract
    from trtkit.engine.store import CachePolicy, Store
    from trtkit.flow.build import build as run_build
    from trtkit.flow.build import preview

    file = load_contract(contract, overrides)
    store = Store(policy=CachePolicy(cache.value) if cache else None)
    if dry_run or explain:
        steps, warnings = preview(file, store)
        warn(warnings)
        if output is Output.JSON:
            show_json({"schema": 1, "stages": [asdict(step) for step in steps]})
        else:
            show("\n".join(line for step in steps for line in _lines(step, explain=explain)))
        return
    with calibration_progress() as report:
        outcome = run_build(file, store, report)
    warn(outcome.plan.warnings)
    if output is Output.JSON:
        products = [asdict(product) for product in outcome.products]
        show_json(
            {"schema": 1, "repository": outcome.repository, "stages": products, "plan": asdict(outcome.plan)}
        )
        return
    for product in outcome.products:
        show(f"{product.stage:<10}{'hit' if product.hit else f'{product.seconds:.1f} s':<10}{product.path}")
    show(f"\nmodel repository: {outcome.repository}")


def _lines(step: Step, *, explain: bool) -> list[str]:
    """Return a dry run's lines: what happens, and the files or the reasons."""
    below = step.why if explain else (", ".join(step.files),)
    return [f"{step.stage:<10}{step.state:<10}{step.path}", *(f"{'':<20}{each}" for each in below)]
