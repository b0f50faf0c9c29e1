"""``trtkit serve``: a real tritonserver on a model repository."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trtkit.cli.console import Output, explain, plain_progress, run_until_signal, say, show, show_json
from trtkit.cli.options import OutputOption
from trtkit.errors import TrtkitError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("serve")(serve)


def serve(
    repository: Annotated[Path, typer.Argument(metavar="REPO", help="Model repository with its engine.")],
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8002,
    log_file: Annotated[Path, typer.Option(help="tritonserver's own log.")] = Path("tritonserver.log"),
    hostfile: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="With --dry-run, engines on several machines: mpirun's list of them."
        ),
    ] = "",
    shm_prefix: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="With --dry-run: start of names in shared memory, another for each server of a machine.",
            show_default="trtkit-GRPC_PORT-",
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the command and its environment.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Serve until Ctrl-C; ready means that a real generation came back."""
    from trtkit.engine.slots.here import check_repository
    from trtkit.engine.store import Store
    from trtkit.flow.up import watch
    from trtkit.triton.launch import Ports
    from trtkit.triton.server import TritonServer
    from trtkit.triton.starter import read_launch, refuse_here

    ports = Ports(http_port, grpc_port, metrics_port)
    launch = read_launch(repository, ports, hostfile=hostfile, shm_prefix=shm_prefix)
    if launch is not None and dry_run:
        _show(launch.argv, launch.env, launch.line(), output)
        return
    if launch is not None:
        refuse_here(repository, launch)
    server = TritonServer(
        repository, log_file=log_file, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port
    )
    if dry_run:
        _show(server.command, server.env, server.dry_run(), output)
        return
    check_repository(repository)
    store = Store()
    store.hold(repository)  # nobody removes it while it is served

    ready = False

    async def run() -> None:
        nonlocal ready
        report = plain_progress()
        report("start tritonserver", 0, None)
        with server:
            await asyncio.to_thread(server.wait_ready)
            report("start tritonserver", 1, 1)
            ports = {"grpc": server.grpc_port, "http": server.http_port, "metrics": server.metrics_port}
            if output is Output.JSON:
                show_json({"schema": 1, "ports": ports, "log_file": log_file})
            else:
                show(", ".join(f"{name} 127.0.0.1:{port}" for name, port in ports.items()))
            say(f"up until Ctrl-C; log in {log_file}")
            ready = True
            await watch(server)

    try:
        finished = run_until_signal(run())
    except TrtkitError as error:
        if not ready:
            raise
        # Its one document is out already.
        explain(error)
        raise typer.Exit(error.exit_code) from None
    if not finished and not ready:
        raise typer.Exit(130)


def _show(argv: Sequence[str], env: Mapping[str, str], line: str, output: Output) -> None:
    if output is Output.JSON:
        show_json({"schema": 1, "argv": argv, "env": dict(env)})
    else:
        show(line)
