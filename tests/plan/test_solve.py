"""The plan turned round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.published import published
from trtkit.errors import ContractError, InputError
from trtkit.plan import Machine
from trtkit.plan.chart import page
from trtkit.plan.compare import Field, best_of_each, compare
from trtkit.plan.render import render_candidates
from trtkit.plan.resolve import outline
from trtkit.plan.solve import Unknown, changed, fits, full_sequences, solve
from trtkit.plan.types import Workload

MACHINE = Machine(cores=2, memory_bytes=None)
MODEL, LARGE = published("llama-3.1-8b"), published("llama-3.3-70b")
FP8 = {"weights": "fp8", "kv_cache": "fp8"}


def contract(contract_with, gpu="l40s", limits=None, quantization=FP8, **engine):
    engine = {"backend": "tensorrt", "gpu": gpu, "limits": limits or {}} | engine
    return contract_with(engine=engine, quantization=quantization)


@given(length=st.integers(256, 8192), gpu=st.sampled_from(["l4", "l40s", "h100-sxm", "h200"]))
def test_the_largest_batch_is_where_the_forward_plan_stops(contract_with, length, gpu):
    asked = contract(contract_with, gpu, {"max_seq_len": length})
    batch = solve(Unknown.MAX_BATCH_SIZE, asked, MODEL, MACHINE).value

    def held(size):
        return full_sequences(outline(changed(asked, max_batch_size=size), MODEL, MACHINE))

    assert held(batch) >= batch
    assert held(batch + 1) < batch + 1


@given(batch=st.integers(8, 256))
def test_the_longest_sequence_is_where_the_forward_plan_stops(contract_with, batch):
    asked = contract(contract_with, limits={"max_batch_size": batch})
    length = solve(Unknown.MAX_SEQ_LEN, asked, MODEL, MACHINE).value

    def held(size):
        return full_sequences(outline(changed(asked, max_seq_len=size, max_batch_size=batch), MODEL, MACHINE))

    assert held(length) >= batch
    assert length == MODEL.max_position_embeddings or held(length + 1) < batch


def test_the_fewest_ranks_and_the_smallest_gpu_are_those_that_fit(contract_with):
    asked = contract(contract_with, "h100-sxm", {"max_batch_size": 32}, quantization={})
    answer = solve(Unknown.TENSOR_PARALLEL, asked, LARGE, MACHINE)
    assert answer.value == 2
    assert fits(answer.contract, LARGE, MACHINE)
    assert not fits(changed(asked, tensor_parallel=1), LARGE, MACHINE)
    smallest = solve(Unknown.GPU, asked, LARGE, MACHINE).value
    assert smallest == "h200"


def test_a_cpu_solves_too(contract_with, smollm2):
    machine = Machine(cores=2, memory_bytes=4 * 10**9)
    asked = contract_with(engine={"limits": {"max_seq_len": 2048}})
    assert 1 < solve(Unknown.MAX_BATCH_SIZE, asked, smollm2, machine).value < 64


@pytest.mark.parametrize("unknown", list(Unknown))
def test_no_answer_is_an_answer(contract_with, unknown):
    huge = published("llama-3.1-405b")
    with pytest.raises(InputError) as caught:
        solve(unknown, contract(contract_with, "l4", quantization={}), huge, MACHINE)
    assert caught.value.hint


def test_a_target_that_is_none_is_refused_here_too(contract_with):
    with pytest.raises(ContractError):
        solve(Unknown.MAX_BATCH_SIZE, contract(contract_with, None), MODEL, MACHINE)


@pytest.fixture(scope="module")
def candidates(contract_with):
    classes = {"a": {"priority": 1, "ttft_ms": 500, "tpot_ms": 30}}
    asked = contract_with(engine={"backend": "tensorrt", "gpu": "h200"}, classes=classes)
    field = Field(("a100-80", "l4", "h200"), ("none", "int8-sq", "fp8"), (1, 2), Workload(1000, 200))
    return compare(asked, MODEL, MACHINE, field)


def test_a_comparison_has_every_way_with_the_reason_of_those_that_cannot_be(candidates):
    assert len(candidates) == 3 * 3 * 2 - 1
    (refused,) = [each for each in candidates if each.plan is None and each.weights == "fp8"]
    assert refused.gpu.name == "a100-80"
    assert "FP8" in refused.why_not


def test_those_that_keep_the_promises_come_first_by_rate(candidates):
    possible = [each for each in candidates if each.plan is not None]
    assert [each.kept for each in possible] == sorted((each.kept for each in possible), reverse=True)
    kept = [each.per_gpu for each in possible if each.kept]
    assert kept == sorted(kept, reverse=True)
    assert possible[0].gpu.name == "h200"


def test_a_reader_sees_numbers_and_where_they_come_from(candidates):
    text = render_candidates(best_of_each(candidates))
    assert "prompts of 1000 tokens, answers of 200" in text
    assert "estimates, not measurements" in text
    html = page("<a>", best_of_each(candidates))
    assert html.count("<rect") > 6 * 5
    assert "&lt;a&gt;" in html
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
