"""Arguments that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkit.cli.console import Output

ContractArgument = Annotated[Path, typer.Argument(metavar="CONTRACT", help="Contract file (YAML).")]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. engine.limits.max_batch_size=8."),
]
OutputOption = Annotated[Output, typer.Option("--output", help="Form of the result on stdout.")]
