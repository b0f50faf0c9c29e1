"""Bytes on a GPU, against what is published of models and against logs of TensorRT-LLM."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.published import SIZES, published
from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import MIB
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.plan import Machine
from trtkit.plan.gpu_memory import RUNTIME_BYTES, kv_token_bytes, step_bytes
from trtkit.plan.memory import weights_bytes
from trtkit.plan.resolve import outline
from trtkit.plan.types import EngineLimits

GIB = 2**30
LLAMA2, LLAMA31, LLAMA70 = published("llama-2-7b"), published("llama-3.1-8b"), published("llama-3.3-70b")


def plan_with(contract_with, model=LLAMA31, pool=None, **engine):
    engine = {"backend": "tensorrt", "gpu": "h100-sxm", "kv_cache": pool or {}} | engine
    contract = contract_with(engine=engine, quantization={"weights": "fp8", "kv_cache": "fp8"})
    return outline(contract, model, Machine(cores=2, memory_bytes=None))


@pytest.mark.parametrize("name", SIZES)
def test_published_models_have_their_published_sizes(name):
    model, (count, kv_bytes) = published(name), SIZES[name]
    routers = model.num_layers * model.moe.num_experts * model.hidden_size if model.moe else 0
    # All weights take two bytes, routers four.
    assert weights_bytes(model, WEIGHTS["none"], "bfloat16") == 2 * (count + routers)
    assert kv_token_bytes(model, ONE_RANK, "auto", "bfloat16") == kv_bytes


def test_weights_are_as_large_as_the_engine_in_a_log():
    # "Loaded engine size: 6695 MiB": Llama-2-7B in FP8.
    assert weights_bytes(LLAMA2, WEIGHTS["fp8"], "float16") / MIB == pytest.approx(6695, rel=0.01)


@pytest.mark.parametrize(
    ("model", "tokens", "logged_mib"),
    [("llama-2-7b", 8192, 1134), ("qwen2.5-7b", 2048, 262), ("qwen2.5-7b", 512, 91)],
)
def test_step_buffers_are_no_smaller_than_in_logs_and_not_far_above(model, tokens, logged_mib):
    limits = EngineLimits(1, 1024, 2048, tokens, 32)
    assert 1.0 < step_bytes(published(model), ONE_RANK, limits, 1) / MIB / logged_mib < 1.7


def test_what_is_left_for_the_pool_is_what_a_log_says():
    # 79.10 GiB in all, 70.48 available: engine, context, buffers and decoder are 6695 + 1134 + 41 + 172 MiB.
    used = (6695 + 1134 + 41 + 172) * MIB + RUNTIME_BYTES
    assert 79.10 - used / GIB == pytest.approx(70.48, abs=0.01)


@pytest.mark.parametrize(
    ("free_gib", "model", "block", "blocks"), [(17.83, LLAMA31, 32, 8219), (70.48, LLAMA2, 64, 4060)]
)
def test_the_pool_is_cut_as_logs_say(free_gib, model, block, blocks):
    # RTX 5090, Llama-3.1-8B, 0.9 of 17.83 GiB; H100, Llama-2-7B, 0.9 of 70.48 GiB; both caches in FP8.
    per_token = kv_token_bytes(model, ONE_RANK, "fp8", "bfloat16")
    assert 0.9 * free_gib * GIB / per_token / block == pytest.approx(blocks, rel=1e-3)


def test_kv_bytes_per_rank_shrink_until_each_rank_has_one_head():
    sizes = [kv_token_bytes(LLAMA70, Parallelism(tp), "fp8", "bfloat16") for tp in (1, 2, 4, 8, 16, 32)]
    assert sizes == [163_840, 81_920, 40_960, 20_480, 20_480, 20_480]


def test_a_stage_has_its_layers_and_one_end():
    whole = weights_bytes(LLAMA70, WEIGHTS["none"], "bfloat16")
    table = 2 * 128256 * 8192
    half = weights_bytes(LLAMA70, WEIGHTS["none"], "bfloat16", Parallelism(1, 2))
    assert half == (whole - 2 * table - 2 * 8192) // 2 + table + 2 * 8192
    assert kv_token_bytes(LLAMA70, Parallelism(2, 4), "fp8", "bfloat16") == 2 * 20 * 4 * 128


def test_ranks_share_a_padded_head_and_each_has_the_whole_embedding():
    model = replace(LLAMA31, vocab_size=128_257)
    alone, shared = (weights_bytes(model, WEIGHTS["none"], "bfloat16", Parallelism(tp)) for tp in (1, 4))
    layers = 32 * (2 * 4096 + (4096 + 2 * 1024) * 4096 + 4096 * 4096 + 3 * 14336 * 4096)
    assert alone == 2 * (layers + 2 * 128_257 * 4096 + 4096)
    norms = 32 * 2 * 4096
    # 128,257 rows are padded to 4 x 32,065.
    assert shared == 2 * ((layers - norms) // 4 + norms + 128_257 * 4096 + 32_065 * 4096 + 4096)


def test_a_tied_head_takes_room_of_its_own_where_the_embedding_is_whole():
    model = published("llama-3.2-1b")
    sizes = [weights_bytes(model, WEIGHTS["none"], "bfloat16", Parallelism(tp)) for tp in (1, 2)]
    embedding = 2 * 128256 * 2048
    layers = 2 * 16 * ((2048 + 2 * 512) * 2048 + 2048 * 2048 + 3 * 8192 * 2048)
    norms = 2 * (16 * 2 + 1) * 2048
    assert sizes == [embedding + layers + norms, embedding + embedding // 2 + layers // 2 + norms]


def test_experts_are_spread_over_groups_or_divided():
    model = published("mixtral-8x7b")
    divided, spread = (
        weights_bytes(model, WEIGHTS["fp8"], "bfloat16", Parallelism(2, 1, ep)) for ep in (1, 2)
    )
    assert divided == spread


@pytest.mark.parametrize(
    ("weights", "per_weight"),
    [
        ("int4-awq", 4 / 8 + 2 / 128),
        ("int4-gptq", 4 / 8 + 4 / 128),
        ("w4a8-awq", 4 / 8 + 2 / 128),
        ("fp8", 1.0),
    ],
)
def test_scales_of_groups_are_counted(weights, per_weight):
    linear = 80 * ((8192 + 2 * 1024) * 8192 + 8192 * 8192 + 3 * 28672 * 8192)
    rest = 2 * (2 * 128256 * 8192 + (2 * 80 + 1) * 8192)
    found = weights_bytes(LLAMA70, WEIGHTS[weights], "bfloat16") - rest
    # Numbers per input channel are a ten-thousandth of it.
    assert found == pytest.approx(linear * per_weight, rel=1e-3)


def test_the_pool_is_the_least_of_fraction_tokens_and_bytes(contract_with):
    free = plan_with(contract_with).memory
    tokens = plan_with(contract_with, pool={"max_tokens": 1000}).memory.kv_tokens
    assert tokens == 992
    capped = plan_with(contract_with, pool={"max_bytes": 10**9}).memory
    assert capped.kv_tokens == 10**9 // 65_536 // 32 * 32
    both = plan_with(contract_with, pool={"max_bytes": 10**9, "max_tokens": 320}).memory
    assert both.kv_tokens == 320
    left = free.available_bytes - free.weights_bytes - free.activation_bytes - free.overhead_bytes
    assert free.kv_pool_bytes == pytest.approx(0.9 * left, rel=1e-4)


def test_vllm_takes_its_share_of_all_memory(contract_with):
    memory = plan_with(contract_with, backend="vllm").memory
    used = memory.weights_bytes + memory.activation_bytes + memory.overhead_bytes
    assert memory.kv_pool_bytes + used == pytest.approx(0.9 * memory.available_bytes, rel=1e-4)


@given(
    batch=st.integers(1, 512),
    more=st.integers(0, 512),
    tokens=st.integers(512, 8192),
    fraction=st.floats(0.1, 0.9),
)
def test_the_pool_shrinks_with_the_batch_and_grows_with_its_share(
    contract_with, batch, more, tokens, fraction
):
    def pool(size, share):
        limits = {"max_batch_size": size, "max_num_tokens": tokens, "max_seq_len": 2048}
        engine = {"limits": limits, "pool": {"memory_fraction": share}}
        return plan_with(contract_with, **engine).memory.kv_tokens

    assert pool(batch + more, fraction) <= pool(batch, fraction) <= pool(batch, min(1.0, fraction + 0.1))
