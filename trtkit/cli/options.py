"""Arguments that several verbs share."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from trtkit.cli.console import Output


class Cache(str, enum.Enum):
    """The store's policies, apart from the store, which takes long to import."""

    ON = "on"
    OFF = "off"
    REDO = "redo"
    READONLY = "readonly"
    VERIFY = "verify"


ContractArgument = Annotated[Path, typer.Argument(metavar="CONTRACT", help="Contract file (YAML).")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(help="The model's config.json, where its folder is not here.", show_default=False),
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. engine.limits.max_batch_size=8."),
]
OutputOption = Annotated[Output, typer.Option("--output", help="Form of the result on stdout.")]
CacheOption = Annotated[
    Cache | None,
    typer.Option(
        "--cache",
        help="Products in the store: use and keep them, ignore it, make all again, only use what is there, or use and "
        "keep them after reading every byte.",
        show_default="$TRTKIT_CACHE_POLICY, or on",
    ),
]
PoolOption = Annotated[
    str | None,
    typer.Option(
        "--pool", metavar="NAME", help="Of a contract with pools, only this one; left out, each of them."
    ),
]
GrpcPortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="gRPC port of the proxy; 0 picks a free one.")
]
MetricsPortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="HTTP port of the proxy's /metrics; 0 picks a free one.")
]


def parse_path(text: str) -> Path:
    """Return a path; an empty text, as an unset variable leaves it, is no name for the current folder."""
    if not text:
        raise typer.BadParameter("it is empty: name a path, or . for the current folder")
    return Path(text)
