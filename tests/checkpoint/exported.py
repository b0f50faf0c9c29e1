"""What the tests of exported folders share: plain checkpoints, exports, and what is in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export import export_hf
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.safetensors import read_header
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.plan.resolve import quant_plan


def read(folder: Path) -> dict[str, np.ndarray]:
    headers = [read_header(path) for path in sorted(folder.glob("model*.safetensors"))]
    return {name: np.array(info.read()) for header in headers for name, info in header.items()}


def plainly(source: Path, out: Path, **options) -> TrtllmCheckpoint:
    model = HfCheckpoint.open(source)
    convert(model, out, **{"dtype": model.config.dtype, "recipe": Plain(quant_plan("none"))} | options)
    return TrtllmCheckpoint.open(out)


def export(checkpoint: TrtllmCheckpoint, source: Path, out: Path, **options) -> dict[str, np.ndarray]:
    export_hf(checkpoint, HfCheckpoint.open(source), out, **options)
    return read(out)
