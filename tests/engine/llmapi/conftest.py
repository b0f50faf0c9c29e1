"""Plans for GPUs of a published model, and the fixtures of builds."""

from __future__ import annotations

import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.flow.conftest import contract, model  # noqa: F401 - fixtures
from tests.plan.published import published
from trtkit.contract import Contract
from trtkit.plan import Machine, make_plan


@pytest.fixture(scope="module")
def plan_of():
    """Plan Llama 3.1 8B on an H200 for one of the back ends."""

    def plan(backend, *, quantization=None, **engine):
        raw = {
            "name": "it",
            "model": {"source": "it"},
            "quantization": quantization or {"weights": "fp8", "kv_cache": "fp8"},
            "engine": {"backend": backend, "gpu": "h200", **engine},
            "classes": {"only": {"priority": 1, "ttft_ms": 2000}},
        }
        return make_plan(Contract.model_validate(raw), published("llama-3.1-8b"), Machine(2, 16 * 10**9))

    return plan
