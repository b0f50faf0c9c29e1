"""Options of ``trtkit plan``, and which of them make no sense together."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trtkit.contract.formats import BackendName, KvCacheFormat, WeightFormat
from trtkit.errors import InputError

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


SubjectArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONTRACT|CONFIG.json",
        help="Contract, or a model's config.json (or its folder) alone.",
        show_default=False,
    ),
]
BackendOption = Annotated[
    BackendName | None, typer.Option(help="Override engine.backend.", rich_help_panel=_TARGET)
]
GpuOption = Annotated[
    str | None, typer.Option(help="Override engine.gpu; `list` shows the catalog.", rich_help_panel=_TARGET)
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(each.value for each in WeightFormat),
        help="Override quantization.weights.",
        rich_help_panel=_TARGET,
    ),
]
KvCacheOption = Annotated[
    KvCacheFormat | None, typer.Option(help="Override quantization.kv_cache.", rich_help_panel=_TARGET)
]
TensorParallelOption = Annotated[
    int | None, typer.Option(min=1, help="Override engine.tensor_parallel.", rich_help_panel=_TARGET)
]
SolveOption = Annotated[
    str | None,
    typer.Option(help="Find max_batch_size, max_seq_len, tensor_parallel or gpu.", rich_help_panel=_ASK),
]
CompareOption = Annotated[
    bool, typer.Option("--compare", help="Compare GPUs, formats and ranks.", rich_help_panel=_ASK)
]
HtmlOption = Annotated[
    Path | None, typer.Option(help="With --compare: write a page with charts.", rich_help_panel=_ASK)
]
PromptTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Prompt that rates are computed for.", rich_help_panel=_ASK)
]
OutputTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Answer that rates are computed for.", rich_help_panel=_ASK)
]
CalibrationOption = Annotated[
    Path | None, typer.Option(help="Measured speed of this engine (JSON).", rich_help_panel=_ASK)
]
StepOption = Annotated[
    Step | None,
    typer.Option(help="Say what memory a step of the build takes, and refuse it.", rich_help_panel=_ASK),
]
LayerWiseOption = Annotated[
    bool,
    typer.Option(
        "--layer-wise", help="With --step quantize: calibrate layer by layer.", rich_help_panel=_ASK
    ),
]
SiliconOption = Annotated[
    bool, typer.Option("--silicon", help="Ask aiconfigurator for this very model.", rich_help_panel=_ASK)
]


def check_options(given: Mapping[str, Any]) -> None:
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


def check_backend(backend: BackendName) -> None:
    """Refuse a back end without GPUs where GPUs are asked for."""
    from trtkit.catalog.formats import BACKENDS

    if not BACKENDS[backend.value].needs_gpu:
        hint = "leave --backend out, or name one for GPUs"
        raise InputError(f"GPUs are asked for, and the {backend.value} back end runs on none", hint=hint)


def list_overrides(given: Mapping[str, tuple[str, Any]], overrides: Sequence[str]) -> Iterator[str]:
    """Yield options as what they override; ``given`` has the option and its value by the contract's key."""
    for key, (option, value) in given.items():
        if value is None:
            continue
        if value == "":
            raise InputError(f"{option} is empty", hint="name a value, or leave the option out")
        if any(each.partition("=")[0] == key for each in overrides):
            raise InputError(f"{option} and --set {key} say the same", hint="give one of them")
        yield f"{key}={getattr(value, 'value', value)}"
