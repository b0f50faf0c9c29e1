"""``trtkit export``: files for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkit.cli.console import many, read_contract, say, show
from trtkit.cli.options import ContractArgument, SetOption
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


@app.command("compose")
def compose(
    contract: ContractArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of compose.yaml and prometheus.yml.")],
    overrides: SetOption = [],  # noqa: B006
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 7 when a file would change.")
    ] = False,
) -> None:
    """Write a compose file for a host with GPUs: Triton for each pool, proxy, Prometheus."""
    from trtkit.flow.compose import compose_files
    from trtkit.triton.folder import drifts, write

    files = compose_files(read_contract(contract, overrides), out)
    found = drifts(files, out)
    if check and found:
        for each in found:
            say(f"{out / each.path}: {each.state.value}\n{each.diff}")
        hint = f"run: trtkit export compose {contract} -o {out}"
        raise DriftError(f"{many(len(found), 'file')} not as it would be written", path=out, hint=hint)
    if not check:
        write(files, out)
    show(f"{out}: {many(len(files), 'file')}, {'as they should be' if check else f'{len(found)} changed'}")
