"""``trtkit up``: build, serve, proxy, one streamed answer, a short load, and a clean end."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trtkit.cli.calibrate import calibration_progress
from trtkit.cli.console import (
    Output,
    listening,
    plain_progress,
    read_contract,
    run_until_signal,
    say,
    show,
    show_json,
    warn,
    write,
)
from trtkit.cli.options import ContractArgument, GrpcPortOption, MetricsPortOption, OutputOption, SetOption

if TYPE_CHECKING:
    from trtkit.bench.account import ClassAccount, Sample
    from trtkit.triton.server import TritonServer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("up")(up)


def up(
    contract: ContractArgument,
    overrides: SetOption = [],  # noqa: B006
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything up until Ctrl-C.")] = False,
    grpc_port: GrpcPortOption = 0,
    metrics_port: MetricsPortOption = 0,
    requests: Annotated[int, typer.Option(min=1, max=10_000, help="Requests of the mixed load.")] = 24,
    rate: Annotated[float, typer.Option(min=0.01, max=1000.0, help="Arrivals per second.")] = 2.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Go the whole road once, from checkpoint to streamed answers, on this machine."""
    from trtkit.engine.store import Store
    from trtkit.flow.build import build
    from trtkit.flow.up import HOST, Load, Ports, check_served_here, serve_and_show
    from trtkit.triton.ports import choose_ports

    choose_ports(("gRPC", "metrics"), (grpc_port, metrics_port), host=HOST)
    file, store = read_contract(contract, overrides), Store()
    check_served_here(file.contract)
    with calibration_progress() as report:
        built = build(file, store, report)
    warn(built.plan.warnings)
    stages = (f"{product.stage} {_how(product.hit, product.seconds)}" for product in built.products)
    say(f"built: {', '.join(stages)}\nmodel repository: {built.repository}")
    viewer = _Screen(requests, quiet=output is Output.JSON, keep=keep)
    finished = run_until_signal(
        serve_and_show(
            file.contract,
            built,
            log_file=store.root / "log" / f"{file.contract.name}.tritonserver.log",
            ports=Ports(grpc_port, metrics_port),
            load=Load(requests, rate),
            viewer=viewer,
            report=plain_progress(),
            keep=keep,
        )
    )
    if output is Output.JSON:
        rows = [asdict(row) for row in viewer.rows]
        show_json({"schema": 1, "repository": built.repository, "answer": viewer.answer, "classes": rows})
    if not finished and not viewer.rows:
        sys.exit(130)


class _Screen:
    """Shows a person what happens; keeps what a program will be told at the end."""

    def __init__(self, requests: int, *, quiet: bool, keep: bool) -> None:
        self.answer = ""
        self.rows: list[ClassAccount] = []
        self._requests = requests
        self._quiet = quiet
        self._keep = keep
        self._done = -1  # the question comes before the load
        self._where = ""

    def ready(self, grpc_port: int, metrics_port: int, server: TritonServer) -> None:
        from trtkit.flow.up import HOST, QUESTION

        self._where = listening(HOST, grpc_port, metrics_port)
        say(
            f"triton: grpc {server.grpc_address}, http {server.http_url}, log {server.log_file}\n{self._where}"
        )
        if not self._quiet:
            show(f"\n> {QUESTION}")

    def text(self, piece: str) -> None:
        self.answer += piece
        if not self._quiet:
            write(piece)

    def answered(self, sample: Sample) -> None:
        self._done += 1
        if self._done == 0:
            if not self._quiet:
                show("\n")
        elif sample.outcome != "ok":
            say(f"{sample.class_name}: {sample.outcome}")
        elif self._done % 8 == 0 or self._done == self._requests:
            say(f"load: {self._done} of {self._requests} requests answered")

    def finished(self, rows: list[ClassAccount]) -> None:
        from trtkit.bench.render import render

        self.rows = rows
        if not self._quiet:
            show(f"\n{render(rows)}\n\n{self._where}")
        say("up until Ctrl-C" if self._keep else "stopping")


def _how(hit: bool, seconds: float) -> str:
    return "from the store" if hit else f"in {seconds:.1f} s"
