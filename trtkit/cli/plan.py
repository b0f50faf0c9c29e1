"""``trtkit plan``: limits, memory, zones and pace, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trtkit.cli.console import Output, fail, many, progress, say, show, show_json, warn
from trtkit.cli.options import ConfigOption, OutputOption, PoolOption, SetOption
from trtkit.cli.plan_options import (
    BackendOption,
    CalibrationOption,
    CompareOption,
    GpuOption,
    HtmlOption,
    KvCacheOption,
    LayerWiseOption,
    OutputTokensOption,
    PromptTokensOption,
    SiliconOption,
    SolveOption,
    Step,
    StepOption,
    SubjectArgument,
    TensorParallelOption,
    WeightsOption,
    check_backend,
    check_options,
    list_overrides,
)
from trtkit.errors import InputError

if TYPE_CHECKING:
    from trtkit.flow.plan import Question
    from trtkit.plan.compare import Field

_TRY_MORE = "leave --gpu, --weights and --tp out to try all, or ask for less in engine.limits"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan")(plan)


def plan(
    contract: SubjectArgument = None,
    overrides: SetOption = [],  # noqa: B006
    config: ConfigOption = None,
    backend: BackendOption = None,
    gpu: GpuOption = None,
    weights: WeightsOption = None,
    kv_cache: KvCacheOption = None,
    tp: TensorParallelOption = None,
    solve: SolveOption = None,
    compare: CompareOption = False,
    html: HtmlOption = None,
    prompt_tokens: PromptTokensOption = None,
    output_tokens: OutputTokensOption = None,
    calibration: CalibrationOption = None,
    silicon: SiliconOption = False,
    step: StepOption = None,
    layer_wise: LayerWiseOption = False,
    pool: PoolOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Resolve a contract: effective limits, memory, the three zones that the proxy enforces, and speed."""
    if gpu == "list":
        _list_gpus(output)
        return
    if contract is None:
        hint = "name a YAML file, or a model's config.json"
        raise InputError("nothing to plan: the contract is missing", hint=hint)
    check_options({
        "--html": html, "--layer-wise": layer_wise, "--compare": compare, "--solve": solve, "--step": step,
        "--calibration": calibration, "--silicon": silicon, "--prompt-tokens": prompt_tokens,
        "--output-tokens": output_tokens, "--gpu": gpu, "--tp": tp,
    })  # fmt: skip
    if backend is not None and (compare or solve == "gpu"):
        check_backend(backend)
    path = contract / "config.json" if contract.is_dir() else contract
    # Of a model alone a GPU says what is meant.
    implied = "tensorrt" if gpu and _is_model(path) else None
    given = {
        "engine.backend": ("--backend", backend or implied),
        "engine.gpu": ("--gpu", gpu),
        "quantization.weights": ("--weights", weights),
        "quantization.kv_cache": ("--kv-cache", kv_cache),
        "engine.tensor_parallel": ("--tp", tp),
    }
    overrides = [*overrides, *list_overrides(given, overrides)]
    question = _ask(path, overrides, config, of_step=step is not None)
    question = _with_workload(question, prompt_tokens, output_tokens, calibration)
    if silicon:
        question = question.with_silicon()
    pools = question.by_pool(pool)
    if step is None and not compare and solve is None:
        _plan(pools, output)
        return
    if len(pools) > 1:
        message = f"the contract has the pools {', '.join(pools)}, and this is a question about one of them"
        raise InputError(message, hint=f"name one: --pool {next(iter(pools))}")
    (question,) = pools.values()
    if step is not None:
        _step(question, step, layer_wise, output)
    elif compare:
        _compare(question, _field(gpu, weights, tp), html, output)
    elif solve is not None:
        _solve(question, solve, output)


def _field(gpu: str | None, weights: str | None, tp: int | None) -> Field:
    """Return what a comparison tries: everything, but for what is named."""
    from trtkit.plan.compare import Field

    field = Field()
    return Field(
        gpus=(gpu,) if gpu else field.gpus,
        weights=(weights,) if weights else field.weights,
        ranks=(tp,) if tp else field.ranks,
    )


def _is_model(path: Path) -> bool:
    return path.suffix == ".json"


def _ask(path: Path, overrides: list[str], config: Path | None, *, of_step: bool) -> Question:
    from trtkit.contract import load_contract
    from trtkit.flow.plan import ask, bare_contract

    if not _is_model(path):
        with progress() as report:
            return ask(load_contract(path, overrides), config, report, of_step=of_step)
    if config is not None:
        hint = "give one of them, or a contract with --config"
        raise InputError(f"{path} is a configuration too", path=config, hint=hint)
    return ask(bare_contract(path, overrides), path, bare=True)


def _with_workload(
    question: Question, prompt: int | None, answer: int | None, calibration: Path | None
) -> Question:
    from trtkit.flow.plan import read_calibration
    from trtkit.plan.types import Workload

    workload = Workload(prompt, answer) if prompt and answer else None
    measured = read_calibration(calibration) if calibration else None
    return replace(question, workload=workload, measured=measured, measured_file=str(calibration or ""))


def _plan(pools: Mapping[str, Question], output: Output) -> None:
    from trtkit.plan.measured import engine_id
    from trtkit.plan.render import render

    documents: dict[str, Any] = {}
    for name, question in pools.items():
        resolved = question.answer()
        warn(resolved.warnings)
        documents[name] = {"plan": asdict(resolved), "engine": asdict(engine_id(resolved))}
        if output is Output.TEXT:
            show(f"pool {name}\n" * bool(name) + render(resolved))
    if output is Output.JSON:
        show_json({"schema": 1, **documents.get("", {"pools": documents})})


def _step(question: Question, step: Step, layer_wise: bool, output: Output) -> None:
    from trtkit.flow.host import plan_step
    from trtkit.plan.step import render_ways

    ways = plan_step(question, calibrates=step is Step.QUANTIZE, layer_wise=layer_wise)
    if output is Output.JSON:
        show_json({"schema": 1, "step": step.value, "ways": [way.summary() for way in ways]})
    else:
        show(render_ways(ways))


def _solve(question: Question, unknown: str, output: Output) -> None:
    from trtkit.plan.render import render, render_solution
    from trtkit.plan.solve import Unknown

    known = [each.value for each in Unknown]
    if unknown not in known:
        raise InputError(f"--solve {unknown}: nothing solves for that", hint=f"one of {', '.join(known)}")
    solution, resolved = question.solve(Unknown(unknown))
    warn([*(question.of_gpus() if unknown == "gpu" else ()), *resolved.warnings])
    if output is Output.JSON:
        answer = {solution.unknown.value: solution.value, "meaning": solution.meaning}
        show_json({"schema": 1, "solution": answer, "plan": asdict(resolved)})
    else:
        show(f"{render_solution(solution)}\n\n{render(resolved)}")


def _compare(question: Question, field: Field, html: Path | None, output: Output) -> None:
    from trtkit.plan.chart import page
    from trtkit.plan.compare import best_of_each, commonest_reasons
    from trtkit.plan.render import render_candidates

    candidates = question.compare(field)
    best = best_of_each(candidates)
    warn(question.of_gpus())
    if not best:
        reasons = "".join(f"\n  {count} x {reason}" for reason, count in commonest_reasons(candidates))
        fail(
            InputError(
                f"none of {many(len(candidates), 'way')} that were tried fits:{reasons}", hint=_TRY_MORE
            ),
            {"schema": 1, "candidates": [each.summary() for each in candidates]},
        )
    if html is not None:
        html.write_text(page(f"Ways to serve {question.contract.name}", best), encoding="utf-8")
        say(f"written: {html}")
    if output is Output.JSON:
        show_json({"schema": 1, "candidates": [each.summary() for each in candidates]})
    else:
        show(render_candidates(best))


def _list_gpus(output: Output) -> None:
    from trtkit.catalog.gpus import GPUS

    if output is Output.JSON:
        show_json({"schema": 1, "gpus": [asdict(gpu) for gpu in GPUS.values()]})
        return
    for gpu in GPUS.values():
        show(
            f"{gpu.name:<14}{gpu.title:<30}SM {gpu.sm:<5}{gpu.memory_mib:>8,} MiB{gpu.bandwidth_gb_per_s:>7g} GB/s"
        )
