"""``trtkit bench``: open-loop load against a proxy or a Triton, and which promises were kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.bench.schedule import Shape
from trtkit.cli.console import Output, fail, progress, say, show, show_json, warn
from trtkit.cli.options import OutputOption, SetOption
from trtkit.errors import InputError, VerificationError

if TYPE_CHECKING:
    from trtkit.bench.experiment import BenchResult, Experiment
    from trtkit.bench.job import Job, Watcher
    from trtkit.bench.mix import Mix
    from trtkit.contract import ContractFile

_WHO, _WHEN, _HOW_MUCH, _FILES = "Who asks for what", "When", "How much", "Files"

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="HOST:PORT of the gRPC of a proxy or a Triton.")
]
ContractOption = Annotated[Path, typer.Option(metavar="FILE", help="The contract that is served there.")]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A tokenizer.json.", show_default="of the contract's model"),
]
TrafficOption = Annotated[
    list[str],
    typer.Option(
        metavar="CLASS=TABLE[:SHARE]",
        help="Lengths of a class's requests and its share; left out, chat lengths, equal shares.",
        rich_help_panel=_WHO,
    ),
]
ScaleOption = Annotated[
    float, typer.Option(min=0.001, max=10, help="Factor on all lengths.", rich_help_panel=_WHO)
]
TenantsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="Tenants of each class (Zipf).", rich_help_panel=_WHO)
]
CancelOption = Annotated[
    float, typer.Option(min=0, max=1, help="Share of clients that leave in mid-answer.", rich_help_panel=_WHO)
]
SlowOption = Annotated[
    float, typer.Option(min=0, max=1, help="Share of clients that read slowly.", rich_help_panel=_WHO)
]
DeadlinesOption = Annotated[
    bool,
    typer.Option("--deadlines", help="Send each class's deadline as the call's own.", rich_help_panel=_WHO),
]
ArrivalsOption = Annotated[Shape, typer.Option(help="How arrivals are spread.", rich_help_panel=_WHEN)]
CvOption = Annotated[
    float, typer.Option(min=0.1, max=10, help="Burstiness of gamma arrivals.", rich_help_panel=_WHEN)
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        help="Replay its times and lengths (Azure CSV or Mooncake JSON lines).", rich_help_panel=_WHEN
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Requests per second, e.g. 2,4,8.", rich_help_panel=_HOW_MUCH),
]
RhoOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="The same as multiples of the capacity.", rich_help_panel=_HOW_MUCH),
]
CapacityOption = Annotated[
    float | None,
    typer.Option(min=0.001, metavar="RATE", show_default="measured", rich_help_panel=_HOW_MUCH),
]
CapacityTargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Measure the capacity at the Triton behind the proxy.",
        show_default="TARGET",
        rich_help_panel=_HOW_MUCH,
    ),
]
LevelOption = Annotated[
    float, typer.Option(min=1, help="Seconds of each step of that.", rich_help_panel=_HOW_MUCH)
]
DurationOption = Annotated[
    float, typer.Option(min=1, help="Seconds of arrivals per run.", rich_help_panel=_HOW_MUCH)
]
SeedsOption = Annotated[
    int, typer.Option(min=1, max=100, help="Runs at each rate.", rich_help_panel=_HOW_MUCH)
]
RefineOption = Annotated[
    int,
    typer.Option(min=0, max=10, help="Rates between, to find goodput capacity.", rich_help_panel=_HOW_MUCH),
]
BucketsOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Prompt lengths to tell apart.", show_default="the contract's"),
]
SloCheckOption = Annotated[
    bool, typer.Option("--slo-check", help="Exit 6 when an objective of the contract was missed.")
]
HtmlOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a report with plots.", rich_help_panel=_FILES)
]
RequestsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write every request (JSON lines).", rich_help_panel=_FILES),
]
EngineOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="First measure lone prompts, for `trtkit simulate --engine FILE`.",
        rich_help_panel=_FILES,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bench")(bench)


def bench(
    target: TargetArgument,
    contract: ContractOption,
    overrides: SetOption = [],  # noqa: B006
    tokenizer: TokenizerOption = None,
    traffic: TrafficOption = [],  # noqa: B006
    scale: ScaleOption = 1.0,
    tenants: TenantsOption = 1,
    cancel: CancelOption = 0.0,
    slow: SlowOption = 0.0,
    deadlines: DeadlinesOption = False,
    arrivals: ArrivalsOption = Shape.POISSON,
    cv: CvOption = 2.5,
    trace: TraceOption = None,
    rate: RateOption = None,
    rho: RhoOption = None,
    capacity: CapacityOption = None,
    capacity_target: CapacityTargetOption = None,
    level: LevelOption = 15.0,
    duration: DurationOption = 60.0,
    seeds: SeedsOption = 1,
    refine: RefineOption = 0,
    buckets: BucketsOption = None,
    slo_check: SloCheckOption = False,
    html: HtmlOption = None,
    requests: RequestsOption = None,
    engine: EngineOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send requests at their times, whatever became of earlier ones, and count the promises that were kept."""
    from trtkit.bench.arrivals import Arrivals
    from trtkit.bench.filler import Filler
    from trtkit.bench.job import Job, Load
    from trtkit.bench.mix import Manners
    from trtkit.bench.sim.trace import read_trace
    from trtkit.contract import load_contract

    _check(arrivals, trace, rate, rho)
    file = load_contract(contract, overrides)
    mix, tokens = _prepare(file, traffic, tenants, tokenizer)
    spread = Arrivals(arrivals, cv, trace=read_trace(trace) if trace else ())
    job = Job(
        file.contract,
        replace(mix, scale=scale, arrivals=spread, manners=Manners(cancel, slow, deadlines)),
        Filler.load(tokens),
        Load(
            _numbers("--rate", rate),
            _numbers("--rho", rho),
            range(seeds),
            duration,
            refine=refine,
            capacity_per_s=capacity,
            level_s=level,
        ),
        [int(each) for each in _numbers("--buckets", buckets)],
        _watcher(),
    )
    experiment = _perform(job, target, capacity_target or target, engine)
    result = experiment.result(mix.described())
    _write(experiment, result, html, requests)
    _tell(result, output, slo_check=slo_check)


def _perform(job: Job, target: str, behind: str, engine: Path | None) -> Experiment:
    if engine is not None:
        rows = asyncio.run(job.probe(behind))
        engine.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
    return asyncio.run(job.run(target, behind))


def _check(arrivals: Shape, trace: Path | None, rate: str | None, rho: str | None) -> None:
    if (arrivals is Shape.REPLAY) != (trace is not None):
        raise InputError("--arrivals replay and --trace FILE need each other", hint="give both, or neither")
    if (rate is None) == (rho is None):
        raise InputError("how much is to be sent?", hint="give either --rate LIST or --rho LIST")


def _numbers(option: str, text: str | None) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",")] if text is not None else []
    except ValueError:
        numbers = [0.0]
    if not all(0 < each < 1e6 for each in numbers) or len(set(numbers)) < len(numbers):
        hint = f"for instance {option} 0.7,1,1.5"
        raise InputError(f"{option} {text!r} is no list of different numbers above 0", hint=hint)
    return numbers


def _prepare(
    file: ContractFile, traffic: Sequence[str], tenants: int, tokenizer: Path | None
) -> tuple[Mix, Path]:
    """Return the mix within the limits of the engine, and where the tokenizer is."""
    from trtkit.bench.mix import mix_of
    from trtkit.engine.store import Store
    from trtkit.flow.build import resolve
    from trtkit.flow.stages import need_tokenizer

    mix = mix_of(file.contract, traffic, tenants)
    if tokenizer is not None:
        return mix, tokenizer
    with progress() as report:
        source, plan = resolve(file, Store(), report)
    warn(plan.warnings)
    limits = plan.limits
    mix = replace(mix, longest_prompt=limits.max_input_len, longest_sequence=limits.max_seq_len)
    return mix, need_tokenizer(source)


def _watcher() -> Watcher:
    from trtkit.bench.job import Watcher

    return Watcher(
        on_level=lambda level: say(f"capacity: {level.rate_per_s:.2f}/s with {level.workers} under way"),
        on_rate=lambda rate_per_s, seed: say(f"{rate_per_s:.3g} requests/s, seed {seed} ..."),
        on_row=lambda row: say(
            f"engine: {row.prompt_tokens} prompt tokens, {row.running} running: first token after "
            f"{1000 * row.ttft_s:.0f} ms, then {1000 * row.tpot_s:.1f} ms each"
        ),
    )


def _write(experiment: Experiment, result: BenchResult, html: Path | None, requests: Path | None) -> None:
    from trtkit.bench.page import page

    if html is not None:
        html.write_text(page(result, experiment.samples, experiment.contract.classes), encoding="utf-8")
        say(f"report: {html}")
    if requests is not None:
        lines = (
            json.dumps({"rate_per_s": rate_per_s, "seed": seed, **asdict(each)}) + "\n"
            for (rate_per_s, seed), samples in experiment.samples.items()
            for each in samples
        )
        requests.write_text("".join(lines), encoding="utf-8")


def _tell(result: BenchResult, output: Output, *, slo_check: bool) -> None:
    from trtkit.bench.summary import summary

    document: dict[str, Any] = asdict(result)
    error = VerificationError(
        "objectives of the contract were missed: " + "; ".join((*result.missed, *result.warnings)),
        hint="promise less, send less, or serve with more engines: trtkit simulate says how many",
    )
    failed = slo_check and bool(result.missed or result.warnings)
    if output is Output.TEXT:
        show(summary(result))
    elif not failed:
        show_json(document)
    if failed:
        fail(error, document)
