"""``trtkit bench``: open-loop load against a proxy or a Triton, and which promises were kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trtkit.bench.schedule import Shape
from trtkit.cli.bench_options import (
    ArrivalsOption,
    BucketsOption,
    CalibrationOption,
    CancelOption,
    CapacityOption,
    CapacityTargetOption,
    ContractOption,
    CvOption,
    DeadlinesOption,
    DurationOption,
    HtmlOption,
    KeepStampsOption,
    LevelOption,
    RateOption,
    RefineOption,
    RequestsOption,
    RhoOption,
    ScaleOption,
    SeedsOption,
    SloCheckOption,
    SlowOption,
    TargetArgument,
    TenantsOption,
    TokenizerOption,
    TraceOption,
    TrafficOption,
    check_addresses,
    check_load,
    check_use,
    parse_buckets,
    parse_numbers,
)
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
    keep_stamps: KeepStampsOption = False,
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

    check_load(arrivals, trace, rate, rho)
    check_use(
        *(arrivals, rho, calibration),
        keep_stamps=keep_stamps,
        cv=cv,
        capacity=capacity,
        behind=capacity_target,
        level=level,
    )
    check_addresses(target, capacity_target)
    sent = parse_numbers("--rate", rate), parse_numbers("--rho", rho), range(seeds), duration, refine
    cuts = parse_buckets(buckets)
    file = read_contract(contract, overrides)
    if slo_check:
        _check_objective(file)
    mix, tokens, plan = _prepare(file, traffic, tenants, tokenizer)
    spread = Arrivals(
        arrivals, cv or Arrivals.cv, trace=read_trace(trace) if trace else (), keep_stamps=keep_stamps
    )
    mix = replace(mix, scale=scale, arrivals=spread, manners=Manners(cancel, slow, deadlines))
    files = Files(html, requests, calibration)
    files.check({"--contract": file.path, "--trace": trace, "--tokenizer": tokenizer})
    keeper = Keeper(files, mix.described())
    load = Load(*sent, capacity_per_s=capacity, level_s=level or Load.level_s)
    job = Job(file.contract, mix, Filler.load(tokens), load, cuts, _watcher(keeper.keep))
    if calibration is not None and plan is None:
        hint = "put the model where the contract says: a calibration names its sizes"
        raise InputError("--calibration needs the plan, and the model is not here", hint=hint)
    failure = _perform(job, target, capacity_target or target, files, plan)
    if keeper.result is None:
        raise failure or StageError("interrupted before a request had ended", hint="let it run")
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
            return StageError(
                "interrupted: only runs that had ended count; of the last, what had ended is told",
                hint="let it run",
            )
    except TrtkitError as error:
        return error
    except OSError as error:
        return EnvironmentLacks(f"a file could not be written: {error}", hint="make room for it")
    return None


def _check_objective(file: ContractFile) -> None:
    from trtkit.bench.account import binds

    if not any(map(binds, file.contract.classes.values())):
        hint = "promise ttft_ms, tpot_ms or deadline_ms to a class that is not sheddable, or leave --slo-check out"
        message = "no class that may not be shed was promised anything: --slo-check has nothing to check"
        raise InputError(message, hint=hint, path=file.path)


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
