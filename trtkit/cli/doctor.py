"""``trtkit doctor``: what this machine has and lacks."""

from __future__ import annotations

import typer

from trtkit.cli.console import Output, fail, show, show_json
from trtkit.cli.options import OutputOption
from trtkit.errors import EnvironmentLacks


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor")(doctor)


def doctor(output: OutputOption = Output.TEXT) -> None:
    """Check Python, the CPU back end and the tritonserver; each lack comes with its fix."""
    from trtkit.flow.doctor import findings

    found = findings()
    result = {"schema": 1, "findings": [vars(each) for each in found]}
    if output is Output.TEXT:
        for each in found:
            show(f"{'ok  ' if each.ok else 'LACK'}  {each.name:<22}{each.detail}")
            if each.hint:
                show(f"      fix: {each.hint}")
    lacks = [each.name for each in found if not each.ok]
    if lacks:
        hint = "each lack above comes with its fix"
        fail(EnvironmentLacks(f"this machine lacks: {', '.join(lacks)}", hint=hint), result)
    if output is Output.JSON:
        show_json(result)
