"""``trtkit plan``: limits, memory, zones and pace, before anything is built."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.cli.console import Output, progress, say, show, show_json, warn
from trtkit.cli.options import OutputOption, PoolOption, SetOption
from trtkit.contract.formats import BackendName, KvCacheFormat, WeightFormat
from trtkit.errors import InputError

if TYPE_CHECKING:
    from trtkit.flow.plan import Question
    from trtkit.plan.compare import Field

_TARGET, _ASK = "Target", "Questions"
_RATES = dict.fromkeys(
    ("--calibration", "--silicon"), "it is the speed of one engine, and others are asked for"
)
_NO_RATES = dict.fromkeys(
    ("--calibration", "--silicon", "--prompt-tokens", "--output-tokens"), "memory does not depend on speed"
)
_USELESS: Mapping[str, Mapping[str, str]] = {
    "--compare": _RATES,
    "--solve gpu": {**_RATES, "--gpu": "it is what is asked for"},
    "--solve tensor_parallel": {**_RATES, "--tp": "it is what is asked for"},
    "--step": _NO_RATES,
}
"""Options that a question has no use for, and why."""


class Step(str, enum.Enum):
    """Steps of a build whose memory can be foreseen."""

    QUANTIZE = "quantize"
    CONVERT = "convert"


_Subject = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONTRACT|CONFIG.json",
        help="Contract, or a model's config.json (or its folder) alone.",
        show_default=False,
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(help="The model's config.json, where its folder is not here.", show_default=False),
]
_Backend = Annotated[
    BackendName | None, typer.Option(help="Override engine.backend.", rich_help_panel=_TARGET)
]
_Gpu = Annotated[
    str | None, typer.Option(help="Override engine.gpu; `list` shows the catalog.", rich_help_panel=_TARGET)
]
_Weights = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(each.value for each in WeightFormat),
        help="Override quantization.weights.",
        rich_help_panel=_TARGET,
    ),
]
_Kv = Annotated[
    KvCacheFormat | None, typer.Option(help="Override quantization.kv_cache.", rich_help_panel=_TARGET)
]
_Tp = Annotated[
    int | None, typer.Option(min=1, help="Override engine.tensor_parallel.", rich_help_panel=_TARGET)
]
_Solve = Annotated[
    str | None,
    typer.Option(help="Find max_batch_size, max_seq_len, tensor_parallel or gpu.", rich_help_panel=_ASK),
]
_Compare = Annotated[
    bool, typer.Option("--compare", help="Compare GPUs, formats and ranks.", rich_help_panel=_ASK)
]
_Html = Annotated[
    Path | None, typer.Option(help="With --compare: write a page with charts.", rich_help_panel=_ASK)
]
_Prompt = Annotated[
    int | None, typer.Option(min=1, help="Prompt that rates are computed for.", rich_help_panel=_ASK)
]
_Answer = Annotated[
    int | None, typer.Option(min=1, help="Answer that rates are computed for.", rich_help_panel=_ASK)
]
_Calibration = Annotated[
    Path | None, typer.Option(help="Measured speed of this engine (JSON).", rich_help_panel=_ASK)
]
_Step = Annotated[
    Step | None,
    typer.Option(help="Say what memory a step of the build takes, and refuse it.", rich_help_panel=_ASK),
]
_LayerWise = Annotated[
    bool,
    typer.Option(
        "--layer-wise", help="With --step quantize: calibrate layer by layer.", rich_help_panel=_ASK
    ),
]
_Silicon = Annotated[
    bool, typer.Option("--silicon", help="Ask aiconfigurator for this very model.", rich_help_panel=_ASK)
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan")(plan)


def plan(
    contract: _Subject = None,
    overrides: SetOption = [],  # noqa: B006
    config: _Config = None,
    backend: _Backend = None,
    gpu: _Gpu = None,
    weights: _Weights = None,
    kv_cache: _Kv = None,
    tp: _Tp = None,
    solve: _Solve = None,
    compare: _Compare = False,
    html: _Html = None,
    prompt_tokens: _Prompt = None,
    output_tokens: _Answer = None,
    calibration: _Calibration = None,
    silicon: _Silicon = False,
    step: _Step = None,
    layer_wise: _LayerWise = False,
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
    _check_options({
        "--html": html, "--layer-wise": layer_wise, "--compare": compare, "--solve": solve, "--step": step,
        "--calibration": calibration, "--silicon": silicon, "--prompt-tokens": prompt_tokens,
        "--output-tokens": output_tokens, "--gpu": gpu, "--tp": tp,
    })  # fmt: skip
    if backend is not None and (compare or solve == "gpu"):
        _check_backend(backend)
    # Of a model alone a GPU says what is meant.
    alone = contract.suffix == ".json" or contract.is_dir()
    implied = "tensorrt" if gpu and alone else None
    given = {
        "engine.backend": ("--backend", backend or implied),
        "engine.gpu": ("--gpu", gpu),
        "quantization.weights": ("--weights", weights),
        "quantization.kv_cache": ("--kv-cache", kv_cache),
        "engine.tensor_parallel": ("--tp", tp),
    }
    question = _ask(contract, [*overrides, *_overrides(given, overrides)], config, of_step=step is not None)
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


def _check_options(given: Mapping[str, Any]) -> None:
    """Refuse an option that would have no effect beside the others."""
    asked = [name for name, value in given.items() if value is not None and value is not False]
    questions = [name for name in ("--compare", "--solve", "--step") if name in asked]
    if len(questions) > 1:
        raise InputError(f"{' and '.join(questions)} are two questions", hint="ask one after the other")
    mode = f"--solve {given['--solve']}" if "--solve" in asked else "".join(questions)
    for name in asked:
        if name in _USELESS.get(mode, {}):
            raise InputError(f"{name} has no effect with {mode}: {_USELESS[mode][name]}", hint="leave it out")
    if "--html" in asked and mode != "--compare":
        raise InputError("--html draws a comparison", hint="give --compare too")
    if "--layer-wise" in asked and given["--step"] is not Step.QUANTIZE:
        raise InputError("--layer-wise is a way to calibrate", hint="give --step quantize too")
    if "--calibration" in asked and "--silicon" in asked:
        raise InputError("--calibration and --silicon are two sources of one speed", hint="give one")
    if ("--prompt-tokens" in asked) != ("--output-tokens" in asked):
        raise InputError("--prompt-tokens and --output-tokens go together", hint="give both or none")


def _check_backend(backend: BackendName) -> None:
    from trtkit.catalog.formats import BACKENDS

    if not BACKENDS[backend.value].needs_gpu:
        hint = "leave --backend out, or name one for GPUs"
        raise InputError(f"GPUs are asked for, and the {backend.value} back end runs on none", hint=hint)


def _overrides(given: Mapping[str, tuple[str, Any]], overrides: Sequence[str]) -> Iterator[str]:
    for key, (option, value) in given.items():
        if value is None:
            continue
        if any(each.partition("=")[0] == key for each in overrides):
            raise InputError(f"{option} and --set {key} say the same", hint="give one of them")
        yield f"{key}={getattr(value, 'value', value)}"


def _field(gpu: str | None, weights: str | None, tp: int | None) -> Field:
    """Return what a comparison tries: everything, but for what is named."""
    from trtkit.plan.compare import Field

    field = Field()
    return Field(
        gpus=(gpu,) if gpu else field.gpus,
        weights=(weights,) if weights else field.weights,
        ranks=(tp,) if tp else field.ranks,
    )


def _ask(contract: Path, overrides: list[str], config: Path | None, *, of_step: bool) -> Question:
    from trtkit.flow.plan import ask

    with progress() as report:
        return ask(contract, overrides, config, report, of_step=of_step)


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
    from trtkit.plan.compare import best_of_each
    from trtkit.plan.render import render_candidates

    candidates = question.compare(field)
    best = best_of_each(candidates)
    warn(question.of_gpus())
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
