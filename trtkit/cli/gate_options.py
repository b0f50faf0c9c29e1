"""Options of ``trtkit gate``, and which of them make no sense together."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trtkit.errors import InputError

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
OutputOption = Annotated[GateOutput, typer.Option(help="Form of the report on stdout.")]


def check_limits(*limits: float | None) -> None:
    """Refuse a limit that everything keeps."""
    if not all(limit is None or math.isfinite(limit) for limit in limits):
        raise InputError("a limit that nothing exceeds is none", hint="give a number")


def check_tasks(tasks: Sequence[str] | None, *about: float | Path | None) -> None:
    """Refuse options about tasks where no task is named."""
    if not tasks and any(each is not None for each in about):
        message = "--task-folder, --task-limit, --shots and --max-task-loss are about tasks"
        raise InputError(message, hint="name one with --task")
