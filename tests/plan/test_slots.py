"""Every slot that a plan lets through is one that the runner takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.published import published
from trtkit.contract import Contract
from trtkit.engine.graph.spec import CacheSize
from trtkit.engine.rtx.config import spec_of
from trtkit.engine.slots.folder import slot_bytes
from trtkit.errors import ContractError
from trtkit.plan import Machine, make_plan
from trtkit.plan.kv import ALIGNMENT_BYTES
from trtkit.plan.solve import Unknown, solve

MACHINE = Machine(cores=2, memory_bytes=64 * 10**9)


def contract_of(backend="rtx", **limits):
    engine = {"backend": backend, "limits": {"max_batch_size": 4, **limits}}
    return Contract.model_validate(
        {
            "name": "t",
            "model": {"source": "x"},
            "classes": {"only": {"priority": 1, "ttft_ms": 500}},
            "engine": engine | ({"gpu": "rtx-pro-6000"} if backend == "rtx" else {}),
        }
    )


def planned(model, backend="rtx", **limits):
    return make_plan(contract_of(backend, **limits), model, MACHINE)


@given(
    heads=st.sampled_from([1, 2, 3, 5, 9]),
    head_size=st.sampled_from([16, 32, 40, 64, 80, 96, 128]),
    positions=st.integers(200, 5000),
    asked=st.none() | st.integers(17, 5000),
)
def test_a_plan_that_passes_has_slots_that_the_runner_takes(heads, head_size, positions, asked):
    model = replace(
        published("smollm2-135m"),
        num_heads=heads,
        num_kv_heads=heads,
        head_size=head_size,
        max_position_embeddings=positions,
    )
    try:
        plan = planned(model, **({"max_seq_len": asked} if asked else {}))
    except ContractError as error:
        assert {problem.key for problem in error.problems} == {"engine.limits.max_seq_len"}  # noqa: PT017
        assert asked
        return
    size = slot_bytes(spec_of(plan), CacheSize(1, heads, head_size))
    assert size % ALIGNMENT_BYTES == 0


def test_a_length_that_the_runner_would_refuse_is_refused_with_the_nearest_that_fit():
    with pytest.raises(ContractError, match=r"make it a multiple of 2: 2046 or 2048"):
        planned(published("smollm2-135m"), max_seq_len=2047)
    assert planned(published("smollm2-135m"), backend="onnx", max_seq_len=2047).limits.max_seq_len == 2047


@pytest.mark.parametrize("backend", ["onnx", "rtx"])
def test_a_length_without_angles_is_refused(backend):
    model = replace(published("smollm2-135m"), max_position_embeddings=1 << 26)
    with pytest.raises(ContractError, match="at most 16777216"):
        planned(model, backend, max_batch_size=1, max_seq_len=1 << 25)


def test_the_longest_that_fits_is_one_that_the_runner_takes():
    model = replace(published("smollm2-135m"), max_position_embeddings=8191)
    assert solve(Unknown.MAX_SEQ_LEN, contract_of(), model, MACHINE).value == 8190


def test_a_step_of_a_graph_need_not_be_whole_blocks():
    plan = planned(published("smollm2-135m"), max_num_tokens=100)
    assert "engine.limits.max_num_tokens" not in [problem.key for problem in plan.warnings]


@pytest.mark.parametrize(
    ("gate", "length", "refused"),
    [
        ({}, 384, True),
        ({}, 512, False),
        ({"sample_tokens": 65}, 64, True),
        ({"on": ["checkpoint"]}, 64, False),
    ],
)
def test_the_gate_reads_samples_that_fit_a_slot(gate, length, refused):
    document = contract_of(max_seq_len=length).model_dump(mode="json", exclude_unset=True)
    document["quantization"] = {"weights": "int8-wo", "gate": gate}
    contract = Contract.model_validate(document)
    if not refused:
        make_plan(contract, published("smollm2-135m"), MACHINE)
        return
    with pytest.raises(ContractError, match=f"at most {length}") as caught:
        make_plan(contract, published("smollm2-135m"), MACHINE)
    assert [each.key for each in caught.value.problems] == ["quantization.gate.sample_tokens"]
