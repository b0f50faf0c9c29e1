"""``trtkit plan``: limits, memory and zones, before anything is built."""

from __future__ import annotations

from dataclasses import asdict

import typer

from trtkit.cli.console import Output, progress, show, show_json, warn
from trtkit.cli.options import ContractArgument, OutputOption, SetOption


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan")(plan)


def plan(contract: ContractArgument, overrides: SetOption = [], output: OutputOption = Output.TEXT) -> None:  # noqa: B006
    """Resolve a contract: effective limits, memory, and the three zones that the proxy enforces."""
    from trtkit.contract import load_contract
    from trtkit.engine.store import Store
    from trtkit.flow.build import resolve
    from trtkit.plan.render import render

    with progress() as report:
        _, resolved = resolve(load_contract(contract, overrides), Store(), report)
    warn(resolved.warnings)
    if output is Output.JSON:
        show_json({"schema": 1, "plan": asdict(resolved)})
    else:
        show(render(resolved))
