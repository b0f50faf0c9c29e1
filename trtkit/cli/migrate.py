"""``trtkit migrate``: a contract for another back end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtkit.cli.console import Output, many, read_contract, say, show, show_json
from trtkit.cli.options import ContractArgument, OutputOption, SetOption
from trtkit.contract.formats import BackendName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.flow.changes import Change
    from trtkit.flow.migrate import Migration


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("migrate")(migrate)


def migrate(
    contract: ContractArgument,
    to: Annotated[
        BackendName, typer.Option("--to", help="Back end to move to.", metavar="tensorrt|llmapi|vllm|edgellm")
    ],
    gpu: Annotated[
        str | None, typer.Option(help="GPU by its catalog name.", show_default="the contract's")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write the contract that comes closest.", show_default=False),
    ] = None,
    overrides: SetOption = [],  # noqa: B006
    output: OutputOption = Output.TEXT,
) -> None:
    """Say what stays, changes and is lost of a contract on another back end, and write the closest one."""
    from trtkit.flow.migrate import migrate as move
    from trtkit.flow.migrate import write_contract

    file = read_contract(contract, overrides)
    migration = move(file, to, gpu=gpu)
    if out is not None:
        write_contract(file, migration, out)
        say(f"{out} is written; next: trtkit plan {out}")
    if output is Output.JSON:
        show_json({"schema": 1, "path": out, **migration.as_json()})
    else:
        show("\n".join(_lines(migration)))


def _lines(migration: Migration) -> Iterator[str]:
    yield f"stays: {many(len(migration.kept), 'key')}, classes and their promises among them"
    for title, rows in (
        ("changes", [each for each in migration.changes if not each.lost]),
        ("lost", migration.lost),
    ):
        yield f"{title}:" if rows else f"{title}: nothing"
        for each in rows:
            yield f"  {_line(each)}"
    yield "beside the contract:"
    for remark in migration.remarks:
        yield f"  {remark}"


def _line(change: Change) -> str:
    before = "not given" if change.before is None else change.before
    after = "left out" if change.after is None else change.after
    return f"{change.key}: {before} -> {after}  ({change.why})"
