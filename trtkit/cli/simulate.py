"""``trtkit simulate``: how many engines a contract needs, before there is one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trtkit.cli.console import SIMULATION, Output, progress, read_contract, say, show, show_json, warn
from trtkit.cli.options import ConfigOption, ContractArgument, OutputOption, SetOption
from trtkit.cli.simulate_options import (
    MOST,
    CalibrationOption,
    CvOption,
    DurationOption,
    EngineOption,
    EnginesOption,
    KeepStampsOption,
    MostOption,
    RateOption,
    ScaleOption,
    SeedsOption,
    TenantsOption,
    TraceOption,
    TrafficOption,
    check_options,
    parse_engines,
)
from trtkit.errors import InputError, VerificationError

if TYPE_CHECKING:
    from trtkit.bench.account import ClassAccount
    from trtkit.bench.arrivals import Arrivals
    from trtkit.bench.interval import Interval
    from trtkit.bench.sim.calibrate import Modelled
    from trtkit.bench.sim.capacity import Counts, SimPool, Site
    from trtkit.contract import ContractFile
    from trtkit.plan import Plan
    from trtkit.plan.pace import Speed

_REFERENCE = "reference"
_RATE_PER_S, _DURATION_S = 4.0, 200.0
_ASKED = "each request asks for as many tokens as it gets"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("simulate")(simulate)


def simulate(
    contract: ContractArgument,
    overrides: SetOption = [],  # noqa: B006
    config: ConfigOption = None,
    traffic: TrafficOption = [],  # noqa: B006
    scale: ScaleOption = 1.0,
    tenants: TenantsOption = 1,
    trace: TraceOption = None,
    keep_stamps: KeepStampsOption = False,
    rate: RateOption = None,
    cv: CvOption = None,
    duration: DurationOption = None,
    engines: EnginesOption = None,
    most: MostOption = None,
    engine: EngineOption = None,
    calibration: CalibrationOption = None,
    seeds: SeedsOption = 3,
    output: OutputOption = Output.TEXT,
) -> None:
    """Drive the proxy's own admission with modelled engines: who keeps which promise, and with how many GPUs."""
    from trtkit.bench.mix import mix_of
    from trtkit.bench.sim.capacity import Site, Traffic

    check_options(
        trace=trace,
        keep_stamps=keep_stamps,
        cv=cv,
        engines=engines,
        most=most,
        engine=engine,
        calibration=calibration,
    )
    file = read_contract(contract, overrides)
    wanted = parse_engines(engines, list(file.contract.pools_by_length)) if engines is not None else None
    arrivals = _arrivals(trace, cv, keep_stamps=keep_stamps)
    mix_of(
        file.contract, traffic, tenants
    )  # what is wrong there is told before what is wrong with the engine
    pools, modelled, plan = _pools(file, config, engine, calibration)
    *_, longest = file.of_pools().values()
    mix = mix_of(longest.contract, traffic, tenants, plan.limits if plan else None)
    mix = replace(mix, scale=scale, arrivals=arrivals)
    per_s = rate if rate is not None or trace else _RATE_PER_S
    length_s = duration or (_DURATION_S if per_s else math.inf)
    if per_s and trace and duration is None:
        length_s = len(arrivals.trace) / per_s
    site = Site(file.contract, pools, Traffic(mix, per_s, length_s))
    with progress() as report:
        site.on_progress = lambda counts, seed, come, total: report(
            f"{SIMULATION} of {_numbers(site, counts)} engines, seed {seed}", come, total
        )
        found = wanted or _find(site, range(seeds), most or MOST)
        answer = _Answer.of(site, modelled, found, range(seeds), has_plan=plan is not None)
    if output is Output.JSON:
        show_json(answer.document())
    else:
        say("\n".join(answer.assumptions))
        show(answer.text())


def _arrivals(trace: Path | None, cv: float | None, *, keep_stamps: bool) -> Arrivals:
    from trtkit.bench.arrivals import Arrivals
    from trtkit.bench.schedule import Shape
    from trtkit.bench.sim.trace import read_trace

    if trace is not None:
        return Arrivals(Shape.REPLAY, trace=read_trace(trace), keep_stamps=keep_stamps)
    return Arrivals(Shape.GAMMA, cv=cv or 1.0)


def _pools(
    file: ContractFile, config: Path | None, engine: Path | None, calibration: Path | None
) -> tuple[list[SimPool], Modelled, Plan | None]:
    """Return the contract's pools, and of that with the longest prompts how its engine is known and its plan."""
    from trtkit.bench.sim.capacity import SimPool
    from trtkit.flow.served import known_plan

    made = []
    for (name, pool), each in zip(
        file.contract.pools_by_length.items(), file.of_pools().values(), strict=True
    ):
        plan = known_plan(each, config)
        warn(plan.warnings if plan else ())
        modelled, start = _modelled(each, plan, engine, calibration), pool.min_prompt_tokens
        made.append(SimPool.of(each.contract, modelled.model, plan, name=name, min_prompt_tokens=start))
    return made, modelled, plan


def _modelled(
    file: ContractFile, plan: Plan | None, engine: Path | None, calibration: Path | None
) -> Modelled:
    from trtkit.bench.sim.calibrate import REFERENCE, Known, Modelled, read_engine
    from trtkit.bench.sim.fitting import fit_speed
    from trtkit.flow.plan import read_calibration
    from trtkit.flow.served import foreseen_speed

    if engine is not None:
        return REFERENCE if str(engine) == _REFERENCE else read_engine(engine)
    if plan is not None and calibration is not None:
        speed: Speed | None = read_calibration(calibration).of(plan, file=str(calibration))
    else:
        speed = foreseen_speed(plan) if plan else None
    if plan is None or speed is None:
        lacks = (
            "the model's configuration is not on this machine"
            if file.contract.engine.gpu or calibration
            else "it has no GPU"
        )
        hint = "--calibration FILE as trtkit bench measures it, or --engine reference for an 8B model's"
        hint += "; and --config CONFIG.json" if file.contract.engine.gpu or calibration else ""
        raise InputError(f"nothing is known of this engine's speed: {lacks}", hint=hint, path=file.path)
    fitted = fit_speed(speed, plan, file.contract.engine.limits.max_beam_width)
    near = f"{speed.source}; constants are within {fitted.worst_error:.0%} of it"
    if calibration is not None:
        return Modelled(fitted.model, Known.MEASURED, near)
    return Modelled(fitted.model, Known.FORESEEN, f"{speed.basis.value}, not measured: {near}")


def _find(site: Site, seeds: range, most: int) -> Counts:
    wanted = site.contract.objective.attainment
    say("each request alone on an engine ...")
    hopeless = {name: share for name, share in site.alone(seeds).items() if share < wanted}
    if hopeless:
        classes = ", ".join(f"{name} {share:.1%}" for name, share in hopeless.items())
        hint = "promise more time, allow shorter prompts (max_prompt_tokens), or use a faster engine"
        raise VerificationError(
            f"no number of engines keeps {wanted:.1%} of every class: alone on an engine, {classes}",
            hint=hint,
        )
    found = site.engines_needed(seeds, most, lambda engines, shares: say(_tried(site, engines, shares)))
    if found is None:
        raise VerificationError(
            f"{most} engines do not keep {wanted:.1%} of every class",
            hint="allow more with --most, or promise less",
        )
    return found


def _numbers(site: Site, engines: Counts) -> str:
    if len(engines) == 1:
        return str(engines[0])
    parts = (f"{pool.name} {count}" for pool, count in zip(site.pools, engines, strict=True))
    return f"{sum(engines)} ({', '.join(parts)})"


def _tried(site: Site, engines: Counts, shares: Mapping[str, float]) -> str:
    return f"{_numbers(site, engines)} engines: " + ", ".join(
        f"{name} {share:.1%}" for name, share in shares.items()
    )


@dataclass(frozen=True)
class _Answer:
    """What so many engines give, and all that it rests on."""

    site: Site
    modelled: Modelled
    engines: Counts
    seeds: range
    account: list[ClassAccount]
    intervals: Mapping[str, Interval | None]
    limits_source: str

    @classmethod
    def of(cls, site: Site, modelled: Modelled, engines: Counts, seeds: range, *, has_plan: bool) -> _Answer:
        """Simulate once more, and see how much seeds differ."""
        from trtkit.bench.interval import interval_of

        runs = site.runs(engines, seeds)
        rows = [row for run in runs for row in site.account([run])]
        shares = {
            name: [row.attainment for row in rows if row.class_name == name] for name in site.contract.classes
        }
        intervals = {name: interval_of(each, 0.0, 1.0) for name, each in shares.items()}
        limits = (
            "the plan's"
            if has_plan
            else "the contract's, declared where it gives none: its model is not here"
        )
        return cls(site, modelled, engines, seeds, site.account(runs), intervals, limits)

    @property
    def kept(self) -> bool | None:
        """Whether every class that may not be shed keeps the objective; None where none was promised anything."""
        return self.site.keeps(self.account)

    @property
    def assumptions(self) -> list[str]:
        """What is not measured, for a reader."""
        lines = [line for pool in self.site.pools for line in self._engine_lines(pool)]
        queues = "one queue for all engines" if len(self.site.pools) == 1 else "one queue for each pool"
        lines.append(f"{queues}, no network, no prefix reuse; {_ASKED}")
        lines += [f"{name}: {what}" for name, what in self.site.traffic.mix.described().items()]
        return lines

    def _engine_lines(self, pool: SimPool) -> Iterator[str]:
        model = pool.model
        head = "" if len(self.site.pools) == 1 else f"{pool.name}, from {pool.min_prompt_tokens} tokens: "
        speed = f"{model.prefill_tokens_per_s:.0f} prompt tokens/s, {1000 * model.step_s:.3g} ms a step"
        yield f"{head}engine model ({self.modelled.source}): {speed}"
        room = f"{model.max_num_tokens} tokens and {model.max_batch_size} sequences a step"
        yield f"{head}limits ({self.limits_source}): {room}, {model.kv_tokens} KV tokens"

    def text(self) -> str:
        """Return the answer for a terminal."""
        from trtkit.bench.render import ends, render

        gpus = self.site.gpus(self.engines)
        head = f"engines: {_numbers(self.site, self.engines)}" + (
            f", GPUs: {gpus}" if gpus is not None else ""
        )
        return "\n".join(
            [f"{head} (simulated)", "", render(self.account), *ends(self.account), "", *self._ends()]
        )

    def _ends(self) -> Iterator[str]:
        for name, each in self.intervals.items():
            if each is not None and each.seeds > 1:
                yield f"{name}: {each.text('.1%')}"
        wanted = self.site.contract.objective.attainment
        if self.kept is None:
            yield "objective: no class that may not be shed was promised anything, so there is none to keep"
        else:
            yield f"objective {wanted:.1%} of {', '.join(self.site.binding)}: {'kept' if self.kept else 'missed'}"

    def document(self) -> dict[str, Any]:
        """Return the answer for a program."""
        rows = [
            asdict(row) | {"attainment_by_seed": (found := self.intervals[row.class_name]) and asdict(found)}
            for row in self.account
        ]
        traffic = self.site.traffic
        return {
            "schema": 3,
            "simulated": True,
            "engines": sum(self.engines),
            "gpus": self.site.gpus(self.engines),
            "objective": self.site.contract.objective.attainment,
            "objective_kept": self.kept,
            "binding": self.site.binding,
            "pools": {
                pool.name: {
                    "min_prompt_tokens": pool.min_prompt_tokens,
                    "engines": count,
                    "engine": asdict(pool.model),
                }
                for pool, count in zip(self.site.pools, self.engines, strict=True)
            },
            "engine_known": self.modelled.known.value,
            "engine_source": self.modelled.source,
            "limits_source": self.limits_source,
            "assumptions": self.assumptions,
            "traffic": traffic.mix.described(),
            "rate_per_s": traffic.rate_per_s,
            "seeds": len(self.seeds),
            "classes": rows,
        }
