"""``trtkit export``: files for other tools."""

from __future__ import annotations

from typing import Annotated

import typer

from trtkit.cli.console import show
from trtkit.errors import DriftError

app = typer.Typer(no_args_is_help=True, help="Files for other tools.")


@app.callback()
def _export() -> None:
    """Group the kinds of file."""


@app.command("schema")
def schema(
    check: Annotated[
        bool, typer.Option("--check", help="Exit 7 when the installed schema is out of date.")
    ] = False,
) -> None:
    """Write the contract's JSON Schema to stdout."""
    from trtkit.contract.schema import SCHEMA_FILE, contract_schema

    text = contract_schema()
    if not check:
        show(text.rstrip("\n"))
    elif SCHEMA_FILE.read_text(encoding="utf-8") != text:
        hint = "run: trtkit export schema > trtkit/contract/contract.schema.json"
        raise DriftError("the schema differs from the contract's models", path=SCHEMA_FILE, hint=hint)
