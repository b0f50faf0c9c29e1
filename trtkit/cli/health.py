"""``trtkit health``: whether a server answers requests; for containers and scripts."""

from __future__ import annotations

from typing import Annotated

import typer

from trtkit.cli.console import Output, show, show_json
from trtkit.cli.options import OutputOption
from trtkit.errors import InputError, StartError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("health")(health)


def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="gRPC address of a proxy or a Triton.")],
    timeout_s: Annotated[float, typer.Option(min=0.1, max=600, help="How long it may take to answer.")] = 3.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Ask once; exit 0 when all models are ready, 3 when not or when nobody answers."""
    from trtkit.contract.pools import is_address

    if not is_address(address):
        raise InputError(f"{address!r} is no address", hint="write HOST:PORT, for instance 127.0.0.1:9001")
    why = _why_not(address, timeout_s)
    if why:
        raise StartError(f"{address} is not ready: {why}", hint="see the log of the server")
    if output is Output.JSON:
        show_json({"schema": 1, "address": address, "ready": True})
    else:
        show(f"{address} is ready")


def _why_not(address: str, timeout_s: float) -> str:
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    try:
        with InferenceServerClient(address) as client:
            ready = client.is_server_ready(client_timeout=timeout_s)
    except InferenceServerException as error:
        return str(error.message() or "no answer")
    return "" if ready else "models are missing or still loading"
