"""Plans for this back end, checkpoints for them, and the double of TensorRT-LLM's programs on PATH."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.flow.conftest import save_tokenizer
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.contract.models import Contract
from trtkit.flow.convert import ConvertOptions, choose_recipe
from trtkit.plan import Machine, make_plan

DOUBLE = Path(__file__).with_name("double")
PROGRAMS = {
    "trtllm-build": "build.py",
    "trtllm-refit": "refit.py",
    "nvidia-smi": "nvidia_smi.py",
    "mpirun": "mpirun.py",
    "docker": "docker.py",
}
LIMITS = {"max_batch_size": 4, "max_seq_len": 64, "max_num_tokens": 64}


def contract_of(*, quantization=None, **engine) -> Contract:
    """Return a contract for the tiny model; ``engine`` changes its section."""
    engine = {"backend": "tensorrt", "gpu": "h100-sxm", "trtllm": "1.2", "limits": LIMITS} | engine
    return Contract.model_validate(
        {
            "name": "tiny",
            "model": {"source": "model"},
            "quantization": quantization or {},
            "engine": engine,
            "classes": {"only": {"priority": 1, "ttft_ms": 20000, "default_output_tokens": 8}},
        }
    )


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Put programs of the double, all of them or those that are named, and nothing else of that kind on PATH."""
    for name in list(os.environ):
        if name.startswith("DOUBLE_") or name == "CUDA_VISIBLE_DEVICES":
            monkeypatch.delenv(name)

    def install(*names: str, **env: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for name in names or PROGRAMS:
            program = folder / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{DOUBLE / PROGRAMS[name]}" "$@"\n')
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        for name, value in env.items():
            monkeypatch.setenv(f"DOUBLE_{name.upper()}", value)
        return folder

    return install


@pytest.fixture
def source(tiny_llama):  # noqa: F811
    """The tiny model, and its tensors divisible by what engines want."""
    return HfCheckpoint.open(tiny_llama(name="source"))


@pytest.fixture
def planned(source):
    """Return the plan of a contract for the tiny model."""

    def plan(**changes):
        return make_plan(contract_of(**changes), source.config, Machine(2, 8 * 10**9))

    return plan


@pytest.fixture
def checkpoint(source, tmp_path):
    """Write the checkpoint of a plan."""

    def write(plan):
        out = tmp_path / "checkpoint"
        options = ConvertOptions(weights=plan.quantization.weights, kv_cache=plan.quantization.kv_cache)
        recipe = choose_recipe(source, options)
        convert(source, out, dtype=plan.dtype, recipe=recipe, parallelism=plan.target.ranks)
        return out

    return write


@pytest.fixture
def contract(source, tmp_path):
    """Write a contract for the tiny model, which has a tokenizer."""
    save_tokenizer(source.folder)

    def write(name="contract.yaml", **changes) -> Path:
        content = contract_of(**changes).model_dump(mode="json", exclude_unset=True)
        content["model"]["source"] = str(source.folder)
        path = tmp_path / name
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def build(trtkit):  # noqa: F811
    """Build; return the exit code, the document on stdout, and stderr."""

    def run(*arguments):
        code, out, err = trtkit("build", *arguments, "--output", "json")
        return code, json.loads(out), err

    return run


def stage(document, name):
    return next(each for each in document["stages"] if each["stage"] == name)
