"""``trtkit verify``: whether a folder is sound, and fits the machine that it is to run on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkit.cli.console import Output, fail, many, say, show, show_json, warn
from trtkit.cli.options import OutputOption
from trtkit.errors import Severity, VerificationError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("verify")(verify)


def verify(
    folder: Annotated[Path, typer.Argument(help="Checkpoint, engine, model repository or build product.")],
    against: Annotated[
        list[str],
        typer.Option(
            metavar="TARGET",
            help="What it is to run on: a GPU (l40s), an SM (89), a release line of TensorRT-LLM (1.2), the tag of "
            "an image (26.03), or cpu; may be given more than once.",
        ),
    ] = [],  # noqa: B006
    output: OutputOption = Output.TEXT,
) -> None:
    """Check a folder offline: names, shapes and data types from headers, files against the manifest."""
    from trtkit.flow.against import parse_target, target_problems
    from trtkit.flow.verify import verify_folder

    target = parse_target(against) if against else None
    kind, found = verify_folder(folder)
    found += target_problems(folder, target) if target else []
    problems = [problem for problem in found if problem.severity is Severity.ERROR]
    result = {"schema": 1, "kind": kind, "problems": [vars(problem) for problem in found]}
    warn(problem for problem in found if problem.severity is Severity.WARNING)
    for problem in problems:
        say(str(problem))
    if problems:
        fail(VerificationError(many(len(problems), "problem"), path=folder), result)
    if output is Output.JSON:
        show_json(result)
    else:
        show(f"{folder}: a sound {kind}" + (f" for {target}" if target else ""))
