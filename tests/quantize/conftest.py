"""A tiny model with biases, and activation ranges as calibration would record them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.conftest import save, tiny_llama  # noqa: F401 - a fixture
from trtkit.catalog.parallel import ONE_RANK
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.recipes import recipe_for

SIZES = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 96}


def record(model: Path, out: Path, edit=lambda ranges: None) -> Path:
    """Write ranges for every linear layer of a folder; ``edit`` changes them."""
    rng, ranges = np.random.default_rng(1), {}
    for name, info in HfCheckpoint.open(model).tensors.items():
        if name.endswith("_proj.weight"):
            module, weight = name.removesuffix(".weight"), info.read().astype(np.float32)
            width = weight.shape[1]
            # Layers with the same input have the same range; some channels are outliers.
            same = np.random.default_rng([width, int(module.split(".")[2])])
            ranges[f"{module}|x"] = same.uniform(0.1, 4, width) * np.where(np.arange(width) % 17, 1, 50)
            ranges[f"{module}|y"] = rng.uniform(1, 9, len(weight))
            ranges[f"{module}|w"] = np.abs(weight).max(axis=1)
    ranges = {name: np.asarray(value, np.float32) for name, value in ranges.items()}
    edit(ranges)
    save(out, ranges)
    return out


@pytest.fixture
def model(tiny_llama) -> Path:  # noqa: F811
    return tiny_llama(dtype=np.float32, attention_bias=True, mlp_bias=True, **SIZES)


@pytest.fixture
def ranges(model, tmp_path) -> Path:
    return record(model, tmp_path / "ranges.safetensors")


@pytest.fixture
def write(tmp_path):
    """Convert a model; what comes out has to verify."""
    number = itertools.count()

    def run(
        model: Path, weights: str, *, kv_cache="auto", dtype="float32", ranks=ONE_RANK, **arguments
    ) -> TrtllmCheckpoint:
        out = tmp_path / f"out{next(number)}"
        recipe = recipe_for(quant_plan(weights, kv_cache), **arguments)
        convert(HfCheckpoint.open(model), out, dtype=dtype, recipe=recipe, parallelism=ranks)
        assert verify(out) == []
        return TrtllmCheckpoint.open(out)

    return run
