"""Planning costs nothing: it is done many times over for one answer."""

from __future__ import annotations

import time

from tests.plan.published import published
from trtkit.contract import Contract
from trtkit.plan import Machine, make_plan

MOST_MS = 50


def test_a_405b_is_planned_with_all_checks_in_a_moment():
    contract = Contract.model_validate(
        {
            "name": "t",
            "model": {"source": "x"},
            "quantization": {"weights": "fp8", "kv_cache": "fp8"},
            "engine": {"backend": "tensorrt", "gpu": "h200", "tensor_parallel": 8},
            "classes": {"a": {"priority": 1, "ttft_ms": 5000, "tpot_ms": 60}},
        }
    )
    model = published("llama-3.1-405b")
    started = time.process_time()
    make_plan(contract, model, Machine(cores=2, memory_bytes=None))
    assert 1000 * (time.process_time() - started) < MOST_MS
