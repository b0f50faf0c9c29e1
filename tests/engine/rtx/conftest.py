"""Tiny checkpoints, and plans to compile them by."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engine_cpu.conftest import tiny_config, tiny_tensors, write_checkpoint
from tests.engine_cpu.formats import quantized
from trtkit.checkpoint.trtllm_config import read_config
from trtkit.contract.load import parse_contract
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.plan import Machine, Plan, make_plan

LIMITS = {"max_batch_size": 4, "max_input_len": 24, "max_seq_len": 48, "max_num_tokens": 16}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a tiny Llama, plain or in one of the formats."""

    def written(name: str | None = None, **changes: Any) -> Path:
        config = tiny_config(**changes)
        tensors = tiny_tensors(config)
        if name is not None:
            config, tensors = quantized(name, **changes)
        return write_checkpoint(tmp_path / "checkpoint", config, tensors)

    return written


def plan_for(checkpoint: Path, **engine: Any) -> Plan:
    """Return the plan for a checkpoint; limits are small."""
    document = {
        "name": "tiny",
        "model": {"source": "."},
        "engine": {"backend": "rtx", "gpu": "rtx-pro-6000", "limits": LIMITS, **engine},
        "classes": {"only": {"priority": 1, "ttft_ms": 1000}},
    }
    path = checkpoint / CHECKPOINT_CONFIG
    model = read_config(json.loads(path.read_text()), path=path)
    contract = parse_contract(yaml.safe_dump(document), Path("tiny.yaml")).contract
    return make_plan(contract, model, Machine(cores=2, memory_bytes=8 * 10**9))
