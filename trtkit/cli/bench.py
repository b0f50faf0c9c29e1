"""``trtkit bench``: open-loop load against a proxy or a Triton, and which promises were kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.bench.schedule import Shape
from trtkit.cli.console import (
    Output,
    fail,
    progress,
    read_contract,
    run_until_signal,
    say,
    show,
    show_json,
    warn,
)
from trtkit.cli.options import OutputOption, SetOption
from trtkit.errors import EnvironmentLacks, InputError, StageError, TrtkitError, VerificationError

if TYPE_CHECKING:
    from trtkit.bench.experiment import BenchResult, Experiment
    from trtkit.bench.job import Job, Watcher
    from trtkit.bench.keeper import Files
    from trtkit.bench.mix import Mix
    from trtkit.contract import ContractFile
    from trtkit.plan import Plan

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
    float | None,
    typer.Option(
        min=0.1, max=10, help="Burstiness of gamma arrivals.", show_default="2.5", rich_help_panel=_WHEN
    ),
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
    typer.Option(min=0.001, max=1e6, metavar="RATE", show_default="measured", rich_help_panel=_HOW_MUCH),
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
    float | None,
    typer.Option(
        min=1, max=3600, help="Seconds of each step of that.", show_default="15", rich_help_panel=_HOW_MUCH
    ),
]
DurationOption = Annotated[
    float, typer.Option(min=1, max=1e6, help="Seconds of arrivals per run.", rich_help_panel=_HOW_MUCH)
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
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="First measure lone prompts, and write the engine's speed for `trtkit plan` and `simulate`.",
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
    cv: CvOption = None,
    trace: TraceOption = None,
    rate: RateOption = None,
    rho: RhoOption = None,
    capacity: CapacityOption = None,
    capacity_target: CapacityTargetOption = None,
    level: LevelOption = None,
    duration: DurationOption = 60.0,
    seeds: SeedsOption = 1,
    refine: RefineOption = 0,
    buckets: BucketsOption = None,
    slo_check: SloCheckOption = False,
    html: HtmlOption = None,
    requests: RequestsOption = None,
    calibration: CalibrationOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send requests at their times, whatever became of earlier ones, and count the promises that were kept."""
    from trtkit.bench.arrivals import Arrivals
    from trtkit.bench.filler import Filler
    from trtkit.bench.job import Job, Load
    from trtkit.bench.keeper import Files, Keeper
    from trtkit.bench.mix import Manners
    from trtkit.bench.sim.trace import read_trace

    _check(arrivals, trace, rate, rho)
    _check_use(arrivals, rho, calibration, cv=cv, capacity=capacity, behind=capacity_target, level=level)
    _check_addresses(target, capacity_target)
    sent = _numbers("--rate", rate), _numbers("--rho", rho), range(seeds), duration, refine
    cuts = _buckets(buckets)
    file = read_contract(contract, overrides)
    if slo_check:
        _check_objective(file)
    mix, tokens, plan = _prepare(file, traffic, tenants, tokenizer)
    spread = Arrivals(arrivals, cv or Arrivals.cv, trace=read_trace(trace) if trace else ())
    mix = replace(mix, scale=scale, arrivals=spread, manners=Manners(cancel, slow, deadlines))
    files = Files(html, requests, calibration)
    files.check()
    keeper = Keeper(files, mix.described())
    load = Load(*sent, capacity_per_s=capacity, level_s=level or Load.level_s)
    job = Job(file.contract, mix, Filler.load(tokens), load, cuts, _watcher(keeper.keep))
    if calibration is not None and plan is None:
        hint = "put the model where the contract says: a calibration names its sizes"
        raise InputError("--calibration needs the plan, and the model is not here", hint=hint)
    failure = _perform(job, target, capacity_target or target, files, plan)
    if keeper.result is None:
        raise failure or StageError("interrupted before the first run ended", hint="let it run")
    _tell(keeper.result, output, slo_check=slo_check, failure=failure)


def _perform(job: Job, target: str, behind: str, files: Files, plan: Plan | None) -> TrtkitError | None:
    """Run the bench; return what ended it before its end."""
    from trtkit.bench.calibration import as_text
    from trtkit.bench.whole import write_whole

    async def work() -> None:
        if files.calibration is not None and plan is not None:
            write_whole(files.calibration, as_text(await job.calibrate(behind, plan)))
        await job.run(target, behind)

    try:
        if not run_until_signal(work()):
            return StageError("interrupted: only the runs that had ended are told of", hint="let it run")
    except TrtkitError as error:
        return error
    except OSError as error:
        return EnvironmentLacks(f"a file could not be written: {error}", hint="make room for it")
    return None


def _check(arrivals: Shape, trace: Path | None, rate: str | None, rho: str | None) -> None:
    if (arrivals is Shape.REPLAY) != (trace is not None):
        raise InputError("--arrivals replay and --trace FILE need each other", hint="give both, or neither")
    if (rate is None) == (rho is None):
        raise InputError("how much is to be sent?", hint="give either --rate LIST or --rho LIST")


def _check_use(
    arrivals: Shape,
    rho: str | None,
    calibration: Path | None,
    *,
    cv: float | None,
    capacity: float | None,
    behind: str | None,
    level: float | None,
) -> None:
    """Refuse what would be ignored: nobody should take a default for what was asked."""
    measures = rho is not None and capacity is None
    unused = {
        "--cv": None if arrivals is Shape.GAMMA else cv,
        "--capacity": None if rho is not None else capacity,
        "--level": None if measures else level,
        "--capacity-target": None if measures or calibration is not None else behind,
    }
    if names := [name for name, value in unused.items() if value is not None]:
        hint = "--cv is of gamma arrivals; --level and --capacity-target are of a --rho whose capacity is measured"
        raise InputError(f"{', '.join(names)}: nothing would come of it here", hint=hint)


def _check_addresses(*addresses: str | None) -> None:
    for address in addresses:
        host, _, port = (address or "h:1").rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InputError(f"{address!r} is no HOST:PORT", hint="name the gRPC port of a proxy or a Triton")


def _check_objective(file: ContractFile) -> None:
    from trtkit.bench.account import binds

    if not any(map(binds, file.contract.classes.values())):
        hint = "promise ttft_ms, tpot_ms or deadline_ms to a class that is not sheddable, or leave --slo-check out"
        message = "no class that may not be shed was promised anything: --slo-check has nothing to check"
        raise InputError(message, hint=hint, path=file.path)


def _numbers(option: str, text: str | None) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",")] if text is not None else []
    except ValueError:
        numbers = [0.0]
    if not all(0 < each < 1e6 for each in numbers) or len(set(numbers)) < len(numbers):
        hint = f"for instance {option} 0.7,1,1.5"
        raise InputError(f"{option} {text!r} is no list of different numbers above 0", hint=hint)
    return numbers


def _buckets(text: str | None) -> list[int]:
    numbers = _numbers("--buckets", text)
    if numbers != sorted(numbers) or not all(each.is_integer() for each in numbers):
        hint = "for instance --buckets 128,512,2048"
        raise InputError(f"--buckets {text!r} are no growing numbers of tokens", hint=hint)
    return [int(each) for each in numbers]


def _prepare(
    file: ContractFile, traffic: Sequence[str], tenants: int, tokenizer: Path | None
) -> tuple[Mix, Path, Plan | None]:
    """Return the mix within the limits of the engine, where the tokenizer is, and the plan."""
    from trtkit.bench.mix import mix_of
    from trtkit.engine.store import Store
    from trtkit.flow.build import resolve
    from trtkit.flow.served import known_plan
    from trtkit.flow.stages import need_tokenizer

    if tokenizer is not None:
        plan = known_plan(file)
        return mix_of(file.contract, traffic, tenants, plan.limits if plan else None), tokenizer, plan
    mix_of(file.contract, traffic, tenants)  # what is wrong there is told before the model is fetched
    with progress() as report:
        source, plan = resolve(file, Store(), report)
    warn(plan.warnings)
    return mix_of(file.contract, traffic, tenants, plan.limits), need_tokenizer(source), plan


def _watcher(on_run: Callable[[Experiment], None]) -> Watcher:
    from trtkit.bench.job import Watcher

    return Watcher(
        on_level=lambda level: say(f"capacity: {level.rate_per_s:.2f}/s with {level.workers} under way"),
        on_rate=lambda rate_per_s, seed: say(f"{rate_per_s:.3g} requests/s, seed {seed} ..."),
        on_row=lambda row: say(
            f"engine: {row.prompt_tokens} prompt tokens, {row.running} running: first token after "
            f"{1000 * row.ttft_s:.0f} ms, then {1000 * row.tpot_s:.1f} ms each"
        ),
        on_run=on_run,
    )


def _tell(result: BenchResult, output: Output, *, slo_check: bool, failure: TrtkitError | None) -> None:
    from trtkit.bench.summary import summary

    error = failure
    if error is None and not result.rates:
        hint = "run it on another machine than the target, or at a lower rate"
        error = StageError(f"no run counts: {'; '.join(result.warnings)}", hint=hint)
    if error is None and slo_check and (result.missed or result.warnings):
        error = VerificationError(
            "objectives of the contract were missed: " + "; ".join((*result.missed, *result.warnings)),
            hint="promise less, send less, or serve with more engines: trtkit simulate says how many",
        )
    document: dict[str, Any] = asdict(result)
    if output is Output.TEXT:
        show(summary(result))
    elif error is None:
        show_json(document)
    if error is not None:
        fail(error, document)
