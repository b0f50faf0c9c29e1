"""``trtkit repo``: the Triton model repository of a contract, without its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkit.cli.console import Output, progress, say, show, show_json
from trtkit.cli.options import ContractArgument, OutputOption, SetOption
from trtkit.errors import DriftError


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
    """Write configurations and Python models; files that trtkit did not write are left alone."""
    from trtkit.contract import load_contract
    from trtkit.engine.store import Store
    from trtkit.flow.build import resolve
    from trtkit.triton import folder
    from trtkit.triton.repository import render

    with progress() as report:
        _, plan = resolve(load_contract(contract, overrides), Store(), report)
    files = render(plan)
    drift = folder.check(files, out)
    if not check:
        folder.write(files, out)
    if output is Output.JSON:
        show_json({"schema": 1, "repository": out, "files": sorted(files), "changed": drift})
    elif check and not drift:
        show(f"{out}: {len(files)} files, as they should be")
    elif not check:
        show(f"{out}: {len(files)} files, {len(drift)} changed")
    if check and drift:
        for path in drift:
            say(f"{out / path}: differs")
        raise DriftError(f"{len(drift)} files differ", path=out, hint=f"run: trtkit repo {contract} -o {out}")
