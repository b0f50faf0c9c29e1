"""``trtkit verify``: whether a folder is sound, and fits the machine that it is to run on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtkit.cli.console import Output, fail, many, say, show, show_json, warn
from trtkit.cli.options import OutputOption, parse_path
from trtkit.errors import Severity, VerificationError

if TYPE_CHECKING:
    from trtkit.flow.against import Comparison, Target


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("verify")(verify)


def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            parser=parse_path, metavar="FOLDER", help="Checkpoint, engine, model repository or build product."
        ),
    ],
    against: Annotated[
        list[str],
        typer.Option(
            metavar="TARGET",
            help="What it is to run on: a GPU (l40s), an SM (89), a release of TensorRT-LLM (1.2.1) or its line (1.2), "
            "an image (26.03), tensorrt=10.14.1, driver=590.44, or cpu; may be given more than once.",
        ),
    ] = [],  # noqa: B006
    output: OutputOption = Output.TEXT,
) -> None:
    """Check a folder offline: names, shapes and data types from headers, files against the manifest."""
    from trtkit.flow.against import Comparison, compare, parse_target
    from trtkit.flow.verify import verify_folder

    target = parse_target(against) if against else None
    kind, found = verify_folder(folder)
    comparison = compare(folder, target) if target else Comparison()
    # What keeps both from going on is told once.
    told = {(each.file, each.message) for each in found}
    found += [each for each in comparison.problems if (each.file, each.message) not in told]
    problems = [problem for problem in found if problem.severity is Severity.ERROR]
    result = {
        "schema": 1,
        "kind": kind,
        "problems": [vars(problem) for problem in found],
        "compared": comparison.compared,
        "not_compared": comparison.open,
    }
    warn(problem for problem in found if problem.severity is Severity.WARNING)
    for problem in problems:
        say(str(problem))
    if problems:
        fail(VerificationError(many(len(problems), "problem"), path=folder), result)
    if output is Output.JSON:
        show_json(result)
    else:
        show(f"{folder}: a sound {kind}{_fits(target, comparison)}")


def _fits(target: Target | None, comparison: Comparison) -> str:
    """Return what may be said of a target: that it fits only when something was compared."""
    if target is None:
        return ""
    if comparison.compared:
        left = (
            f"; not compared, as the target does not say: {', '.join(comparison.open)}"
            if comparison.open
            else ""
        )
        return f" for {target} (compared: {', '.join(comparison.compared)}{left})"
    if comparison.problems:
        return f"; nothing in it could be compared with {target}"
    return f"; nothing in it depends on {target}"
