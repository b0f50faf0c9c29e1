"""``trtkit repo``: the Triton model repository of a contract, without its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkit.cli.console import Output, fail, many, progress, say, show, show_json, warn
from trtkit.cli.options import ContractArgument, OutputOption, SetOption
from trtkit.errors import DriftError, Severity, VerificationError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("repo")(repo)


def repo(
    contract: ContractArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the repository.")],
    overrides: SetOption = [],  # noqa: B006
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 7 when a file would change.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write configurations and Python models, unless an engine of another contract lies there.

    Files that trtkit did not write are left alone.
    """
    from trtkit.contract import load_contract
    from trtkit.engine.store import Store
    from trtkit.flow.against import engine_problems
    from trtkit.flow.build import resolve_draft
    from trtkit.flow.chosen import resolve_chosen
    from trtkit.triton import folder
    from trtkit.triton.repository import render

    file, store = load_contract(contract, overrides), Store()
    with progress() as report:
        _, plan = resolve_chosen(file, store, report)
        draft = resolve_draft(file, store, report)
    warn(plan.warnings)
    files = render(plan, draft=draft)
    drift = folder.check(files, out)
    result = {"schema": 1, "repository": out, "files": sorted(files), "changed": drift}
    found = engine_problems(out, plan, contract, overrides)
    warn(each for each in found if each.severity is Severity.WARNING)
    if wrong := [each for each in found if each.severity is Severity.ERROR]:
        for each in wrong:
            say(str(each))
        error = VerificationError("the engine in it is not for this contract", path=out, hint=wrong[0].hint)
        fail(error, result | {"problems": [vars(each) for each in wrong]})
    if check and drift:
        for path in drift:
            say(f"{out / path}: differs")
        hint = f"run: trtkit repo {contract} -o {out}"
        fail(
            DriftError(f"{many(len(drift), 'file')} not as it would be written", path=out, hint=hint), result
        )
    if not check:
        folder.write(files, out)
    if output is Output.JSON:
        show_json(result)
    else:
        state = "as they should be" if check else f"{len(drift)} changed"
        show(f"{out}: {many(len(files), 'file')}, {state}")
