"""What the CPU back end takes for each format, beside what its GPU counterpart would."""

from __future__ import annotations

import pytest

from trtkit.catalog.formats import BACKENDS
from trtkit.errors import ContractError
from trtkit.plan import Machine, make_plan
from trtkit.plan.cpu_memory import copies_bytes, packed_bytes

LINEAR = 30 * (960 * 576 + 576 * 576 + 3 * 1536 * 576)
HEAD = 49152 * 576


@pytest.mark.parametrize(
    ("weights", "per_weight"),
    [("none", 8), ("fp8", 8), ("fp8-rowwise", 8), ("int8-wo", 1), ("int8-sq", 1), ("int4-awq", 0.5)],
)
def test_only_narrow_products_have_narrow_copies(contract_with, smollm2, machine, weights, per_weight):
    plan = make_plan(contract_with(quantization={"weights": weights}), smollm2, machine)
    assert plan.memory.overhead_bytes == copies_bytes(smollm2, weights) == LINEAR * per_weight + 8 * HEAD


@pytest.mark.parametrize(("weights", "per_weight"), [("none", 4), ("int8-wo", 8), ("int8-sq", 8)])
def test_graphs_keep_narrow_weights_twice_as_float32(smollm2, weights, per_weight):
    assert packed_bytes(smollm2, weights) == LINEAR * per_weight + 4 * HEAD


def test_copies_are_taken_off_the_memory_and_the_pool(contract_with, smollm2):
    contract = contract_with(quantization={"weights": "fp8"})
    with pytest.raises(ContractError, match="of buffers need"):
        make_plan(contract, smollm2, Machine(cores=2, memory_bytes=10**9))


@pytest.mark.parametrize("kv_cache", BACKENDS["cpu"].kv_cache)
def test_a_narrow_cache_on_the_cpu_says_that_it_is_none(contract_with, smollm2, machine, kv_cache):
    plan = make_plan(contract_with(quantization={"kv_cache": kv_cache}), smollm2, machine)
    assert plan.memory.kv_bytes_per_token == 23_040
    warned = [problem.key for problem in plan.warnings if problem.key == "quantization.kv_cache"]
    assert bool(warned) == (kv_cache != "auto")
