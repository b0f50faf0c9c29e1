"""The real stack under load, with the proxy and without: tritonserver, the CPU back end, a real model.

Measures the capacity of Triton itself, then sends the same arrivals at multiples of it to the proxy, to Triton, and to
proxies with one element taken away. Prints a table, writes JSON and reports with plots, and exits 1 when a goal is
missed or was not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trtkit.bench.experiment import BenchResult, Experiment, Run, attainments
from trtkit.bench.filler import Filler
from trtkit.bench.interval import interval_of
from trtkit.bench.job import Job, Load, Watcher
from trtkit.bench.load import Target
from trtkit.bench.mix import mix_of
from trtkit.bench.page import page
from trtkit.contract import load_contract
from trtkit.engine.store import Store
from trtkit.flow.build import build
from trtkit.triton.server import TritonServer

CONTRACT = Path(__file__).with_name("goodput.yaml")
TRAFFIC = (
    "interactive=azure2023_code:0.35",
    "standard=azure2023_conversation:0.5",
    "batch=mooncake_conversation:0.15",
)
SCALE = 0.05
TENANTS = 3
DURATIONS_S = {0.7: 15.0, 1.0: 25.0, 1.5: 60.0}
"""By multiple of the capacity. Overload has to last several times the longest promise: until then, who serves all in
order of arrival keeps promises too, on credit."""
RHOS = tuple(DURATIONS_S)
OVERLOAD = RHOS[-1]
TOP_CLASS = "interactive"
LEVEL_S = 15.0
WARM_UP_S, WARM_UP_RHO, WARM_UP_SEED = 6.0, 0.7, 1000


@dataclass(frozen=True)
class Arm:
    """One way to serve, with the contract's keys that it changes."""

    name: str
    overrides: Sequence[str] = ()
    proxied: bool = True
    rhos: Sequence[float] = (OVERLOAD,)


NO_REFUSAL = [f"classes.{name}.on_infeasible=queue" for name in ("interactive", "standard", "batch")]
MAIN_ARMS = (Arm("proxy", rhos=RHOS), Arm("direct Triton", proxied=False, rhos=RHOS))
ARMS = (
    *MAIN_ARMS,
    # Every class has one promise, so by deadline is in order of arrival.
    Arm("arrival order in a class", ["admission.order=deadline"]),
    Arm("without hold-back", ["admission.holdback=[1.0]"]),
    Arm("without refusal", NO_REFUSAL),
)


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--ablations", type=int, default=5, help="seeds of proxies with an element taken away; 0 for none"
    )
    parser.add_argument("--level", type=float, default=LEVEL_S)
    parser.add_argument("--capacity", type=float, help="requests/s; left out, it is measured")
    parser.add_argument(
        "--quick", action="store_true", help="only proxy and direct Triton, at the highest load"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    # As an exception it ends what was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started_s = time.monotonic()
    built = build(load_contract(CONTRACT, []), Store(), lambda *_: None)
    options.out.mkdir(parents=True, exist_ok=True)
    with TritonServer(built.repository, log_file=options.out / "goodput.tritonserver.log") as server:
        server.wait_ready()
        filler = Filler.load(built.source / "tokenizer.json")
        results = asyncio.run(_run(server.grpc_address, filler, options))
    goals = _goals(results)
    _show(results)
    print(f"\n{(time.monotonic() - started_s) / 60:.1f} minutes, load average now {os.getloadavg()[0]:.1f}")
    for goal in goals:
        missed = "   NOT MEASURED" if goal["figure"] is None else "   MISSED"
        figure = _text(goal["figure"], ".3g")
        print(f"{goal['what']}: {figure}, goal {goal['goal']}{'' if goal['met'] else missed}")
    return 0 if all(goal["met"] for goal in goals) else 1


async def _run(triton: str, filler: Filler, options: argparse.Namespace) -> dict[str, BenchResult]:
    """Run every cell of a seed before the next seed, so that what slows the machine down meets all arms."""
    contract = load_contract(CONTRACT, []).contract
    # The contract gives all of the engine's limits.
    mix = replace(mix_of(contract, TRAFFIC, TENANTS), scale=SCALE)
    arms = ARMS if options.ablations and not options.quick else MAIN_ARMS
    watcher = Watcher(on_level=lambda level: _say(f"{level.rate_per_s:.2f}/s with {level.workers} under way"))
    load = Load(rhos=RHOS, capacity_per_s=options.capacity, level_s=options.level)
    capacity = await Job(contract, mix, filler, load, watcher=watcher).measure(triton)
    async with contextlib.AsyncExitStack() as stack:
        experiments = {}
        for arm in arms:
            target = await stack.enter_async_context(Target(stack.enter_context(_front(arm, triton)), filler))
            experiments[arm.name] = Experiment(target, contract, mix, filler, WARM_UP_S, capacity=capacity)
            await _warm_up(experiments[arm.name])
        for seed in range(options.seeds):
            for rho in RHOS[-1:] if options.quick else RHOS:
                for arm in arms:
                    if rho in arm.rhos and (arm in MAIN_ARMS or seed < options.ablations):
                        _say(f"seed {seed}, rho {rho}: {arm.name}")
                        experiments[arm.name].duration_s = DURATIONS_S[rho]
                        await experiments[arm.name].run(rho * capacity.rate_per_s, seed)
            results = {name: each.result(mix.described()) for name, each in experiments.items()}
            _write(options, results)
    for name, each in experiments.items():
        report = options.out / f"goodput-{name.replace(' ', '-')}.html"
        report.write_text(page(results[name], each.samples, contract.classes), encoding="utf-8")
    return results


async def _warm_up(experiment: Experiment) -> None:
    """Let a proxy learn its engine's rate: nothing is refused before."""
    warm = replace(experiment, runs=[], samples={})
    await warm.run(WARM_UP_RHO * experiment.capacity.rate_per_s, WARM_UP_SEED)


@contextlib.contextmanager
def _front(arm: Arm, triton: str) -> Iterator[str]:
    """Start a proxy of its own process for an arm; yield where to send."""
    if not arm.proxied:
        yield triton
        return
    sets = [part for each in arm.overrides for part in ("--set", each)]
    command = [sys.executable, "-m", "trtkit", "proxy", str(CONTRACT), "--upstream", triton, *sets]
    command += ["--grpc-port", "0", "--metrics-port", "0"]
    said: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as proxy:
        try:
            # Read to its end, or a proxy that logs would wait for the pipe.
            for line in proxy.stderr:
                said.append(line)
                if line.startswith("proxy: "):
                    break
            else:
                sys.exit(f"the proxy of {arm.name!r} did not start:\n{''.join(said)}")
            threading.Thread(target=proxy.stderr.read, daemon=True).start()
            yield line.split()[2].rstrip(",")
        finally:
            proxy.terminate()


def _goals(results: dict[str, BenchResult]) -> list[dict]:
    proxy, direct = _by_rho(results["proxy"]), _by_rho(results["direct Triton"])
    goodput = {rho: _mean(runs, "goodput_per_s") for rho, runs in proxy.items()}
    over, directly = goodput.get(OVERLOAD), _mean(direct.get(OVERLOAD, ()), "goodput_per_s")
    best = max(goodput.values()) if set(goodput) == set(RHOS) else None
    tops = [attainments(runs)[TOP_CLASS] for runs in proxy.values()]
    wasted = [_mean(runs, "wasted") for runs in proxy.values()]
    return [
        _goal(f"{TOP_CLASS} attainment at the worst load", _extreme(min, tops), 0.98),
        _goal(f"goodput at {OVERLOAD} of the best of all loads", _ratio(over, best), 0.9),
        _goal(f"goodput at {OVERLOAD}, times direct", _ratio(over, directly), 3),
        _goal("wasted tokens at the worst load", _extreme(max, wasted), 0.1, least=False),
    ]


def _goal(what: str, figure: float | None, goal: float, *, least: bool = True) -> dict:
    met = figure is not None and (figure >= goal if least else figure <= goal)
    return {"what": what, "figure": figure, "goal": goal, "met": met}


def _extreme(choose: Callable, figures: Sequence[float | None]) -> float | None:
    """Return the worst; of figures one of which is not known, nothing is."""
    return None if not figures or None in figures else choose(figures)


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _by_rho(result: BenchResult) -> dict[float, list[Run]]:
    found: dict[float, list[Run]] = {}
    for run in sorted(result.runs, key=lambda run: (run.rho, run.seed)):
        if not run.discarded:
            found.setdefault(round(run.rho, 3), []).append(run)
    return found


def _mean(runs: Sequence[Run], field: str) -> float | None:
    found = interval_of([getattr(run.tally, field) for run in runs])
    return None if found is None else found.mean


def _text(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def _show(results: dict[str, BenchResult]) -> None:
    capacity = results["proxy"].capacity
    print(f"\ncapacity {capacity.rate_per_s:.2f} requests/s: {[asdict(level) for level in capacity.levels]}")
    full, fields = (
        _by_rho(results["proxy"]),
        ("goodput_per_s", "attainment", "wasted", "inversions", "fairness", "overrun_s"),
    )
    heads = (
        "seeds",
        "arrivals s",
        "goodput/s",
        "attainment",
        "wasted",
        "inversions",
        "fairness",
        "overrun s",
        "load avg",
    )
    print(f"{'':26}{'rho':>5}" + "".join(f"{text:>12}" for text in heads))
    for name, result in results.items():
        for rho, runs in _by_rho(result).items():
            loads = sum(run.load_average for run in runs) / len(runs)
            figures = [*(_mean(runs, field) for field in fields), loads]
            cells = [str(len(runs)), f"{runs[0].duration_s:g}", *map(_text, figures)]
            print(f"{name:26}{rho:5.2f}{''.join(f'{cell:>12}' for cell in cells)}")
            print(f"{'':8}{_classes(runs)}; goodput minus the proxy's: {_paired(runs, full.get(rho, []))}")
        for line in result.warnings:
            print(f"{name}: warning: {line}")


def _classes(runs: Sequence[Run]) -> str:
    asked: Counter[str] = Counter()
    for run in runs:
        asked.update({row.class_name: row.requests for row in run.tally.classes})
    return ", ".join(f"{name} {_text(share)} of {asked[name]}" for name, share in attainments(runs).items())


def _paired(runs: Sequence[Run], full: Sequence[Run]) -> str:
    """Return the difference on the same arrivals."""
    by_seed = {run.seed: run.tally.goodput_per_s for run in full}
    pairs = [run.tally.goodput_per_s - by_seed[run.seed] for run in runs if run.seed in by_seed]
    found = interval_of(pairs)
    return "-" if found is None else found.text("+.2f")


def _write(options: argparse.Namespace, results: dict[str, BenchResult]) -> None:
    document = {
        "schema": 2,
        "goals": _goals(results),
        "traffic_seeds": options.seeds,
        "ablation_seeds": options.ablations,
        "arms": {name: asdict(result) for name, result in results.items()},
    }
    (options.out / "goodput.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
