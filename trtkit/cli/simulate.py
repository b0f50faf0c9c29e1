"""``trtkit simulate``: how many engines a contract needs, before there is one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.cli.console import Output, say, show, show_json
from trtkit.cli.options import ContractArgument, OutputOption, SetOption
from trtkit.errors import InputError, VerificationError

if TYPE_CHECKING:
    from trtkit.bench.sim.capacity import Site
    from trtkit.bench.sim.workload import Source
    from trtkit.contract.models import Contract

_DEFAULT_TABLE = "azure2023_conversation"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("simulate")(simulate)


def simulate(
    contract: ContractArgument,
    overrides: SetOption = [],  # noqa: B006
    traffic: Annotated[
        list[str],
        typer.Option(
            metavar="CLASS=TABLE[:SHARE]",
            help="Lengths of a class's requests and its share of the traffic; left out, chat lengths, equal shares.",
        ),
    ] = [],  # noqa: B006
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay this trace (Azure CSV or Mooncake JSON lines), dealt out by share."),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.001, help="Requests per second, where there is no trace.")
    ] = 4.0,
    cv: Annotated[float, typer.Option(min=0.1, max=10, help="Burstiness of arrivals; 1 is Poisson.")] = 1.0,
    duration: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long requests arrive.")
    ] = 200.0,
    engines: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Try this number only, instead of finding the fewest."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, max=100_000, help="Give up the search here.")] = 1024,
    engine: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The engine's constants (JSON), or measured requests to fit them to (JSON lines).",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Independent draws of the traffic.")] = 3,
    output: OutputOption = Output.TEXT,
) -> None:
    """Drive the proxy's own admission with modelled engines: who keeps which promise, and with how many GPUs."""
    from trtkit.bench.render import render
    from trtkit.bench.sim.calibrate import read_engine
    from trtkit.bench.sim.capacity import Site, Traffic
    from trtkit.bench.sim.engine import EngineModel
    from trtkit.bench.sim.trace import read_trace
    from trtkit.contract import load_contract

    spec = load_contract(contract, overrides).contract
    rows = read_trace(trace) if trace else ()
    arrivals = Traffic(_sources(spec, traffic), rate, cv, duration, rows)
    site = Site(spec, read_engine(engine) if engine else EngineModel(), arrivals)
    draws = range(seeds)
    found = engines or _find(site, draws, most)
    account = site.account(found, draws)
    if output is Output.JSON:
        show_json(_document(site, found, account))
    else:
        say(_assumptions(site, declared=engine is None))
        show(f"engines: {found}, GPUs: {site.gpus(found)}\n\n{render(account)}")


def _find(site: Site, seeds: range, most: int) -> int:
    wanted = site.contract.objective.attainment
    hopeless = {name: share for name, share in site.alone(seeds).items() if share < wanted}
    if hopeless:
        classes = ", ".join(f"{name} {share:.1%}" for name, share in hopeless.items())
        hint = "promise more time, allow shorter prompts (max_prompt_tokens), or use a faster engine"
        raise VerificationError(
            f"no number of engines keeps {wanted:.1%} of every class: alone on an engine, {classes}",
            hint=hint,
        )
    found = site.engines_needed(seeds, most, lambda engines, shares: say(_tried(engines, shares)))
    if found is None:
        raise VerificationError(
            f"{most} engines do not keep {wanted:.1%} of every class",
            hint="allow more with --most, or promise less",
        )
    return found


def _tried(engines: int, shares: dict[str, float]) -> str:
    return f"{engines} engines: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def _sources(contract: Contract, traffic: list[str]) -> list[Source]:
    from trtkit.bench.sim.workload import Source, length_tables

    given: dict[str, tuple[str, float]] = {}
    for text in traffic:
        name, _, rest = text.partition("=")
        table, _, share = rest.partition(":")
        if name not in contract.classes or table not in length_tables() or not _is_share(share):
            hint = f"classes: {', '.join(contract.classes)}; tables: {', '.join(length_tables())}; shares above 0"
            raise InputError(f"--traffic {text!r} is not CLASS=TABLE[:SHARE]", hint=hint)
        given[name] = (table, float(share or 1))
    sources = []
    for name, promise in contract.classes.items():
        table, weight = given.get(name, (_DEFAULT_TABLE, 0.0 if given else 1.0))
        most_tokens = promise.max_output_tokens or promise.default_output_tokens
        sources.append(Source(name, weight, table, most_tokens, longest_prompt=promise.max_prompt_tokens))
    return sources


def _is_share(text: str) -> bool:
    try:
        return not text or 0 < float(text) < 1e9
    except ValueError:
        return False


def _assumptions(site: Site, *, declared: bool) -> str:
    model = site.model
    origin = "declared constants, not measured ones" if declared else "given constants"
    return (
        f"engine model ({origin}): {model.prefill_tokens_per_s:g} prompt tokens/s, {1000 * model.step_s:g} ms a step, "
        f"{model.max_num_tokens} tokens and {model.max_batch_size} sequences a step, {model.kv_tokens} KV tokens; "
        "no network, no prefix reuse"
    )


def _document(site: Site, engines: int, account: list[Any]) -> dict[str, Any]:
    return {
        "schema": 1,
        "engines": engines,
        "gpus": site.gpus(engines),
        "objective": site.contract.objective.attainment,
        "engine": asdict(site.model),
        "classes": [asdict(row) for row in account],
    }
