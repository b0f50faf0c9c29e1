"""``trtkit proxy``: priorities and promises in front of a running Triton."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from trtkit.cli.console import listening, progress, read_contract, say, warn
from trtkit.cli.options import ContractArgument, SetOption


class LogLevel(str, enum.Enum):
    """What is logged to stderr, one JSON object a line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("proxy")(proxy)


def proxy(
    contract: ContractArgument,
    upstream: Annotated[
        list[str],
        typer.Option(
            metavar="[POOL=]HOST:PORT",
            help="gRPC address of Triton, or of each of several; left out, the contract's.",
        ),
    ] = [],  # noqa: B006
    overrides: SetOption = [],  # noqa: B006
    engine_metrics: Annotated[
        list[str],
        typer.Option(
            metavar="HOST:PORT",
            help="Metrics of each upstream in turn, to notice its other clients.",
        ),
    ] = [],  # noqa: B006
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 9001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 9002,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            help="info logs each request that did not end well as a line of JSON, debug every request."
        ),
    ] = LogLevel.WARNING,
) -> None:
    """Speak Triton's gRPC to services and keep the contract's promises; Ctrl-C drains, a second one forces."""
    from trtkit.engine.store import Store
    from trtkit.flow.pools import plan_pools
    from trtkit.flow.stages import need_tokenizer
    from trtkit.proxy.config import ProxyConfig, endpoints_of, pools_of
    from trtkit.proxy.journal import open_journal
    from trtkit.proxy.server import run
    from trtkit.triton.ports import choose_ports

    choose_ports(("gRPC", "metrics"), (grpc_port, metrics_port), host=host)
    file = read_contract(contract, overrides)
    endpoints = endpoints_of(file.contract, upstream, engine_metrics)
    with progress() as report:
        source, plans = plan_pools(file, Store(), report)
    warn(dict.fromkeys(problem for plan in plans.values() for problem in plan.warnings))
    config = ProxyConfig.from_pools(
        file.contract,
        pools_of(file.contract, plans, endpoints),
        tokenizer=need_tokenizer(source),
        host=host,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
    )
    with open_journal(log_level.value):
        run(config, lambda proxy: say(listening(host, proxy.grpc_port, proxy.metrics_port)))
