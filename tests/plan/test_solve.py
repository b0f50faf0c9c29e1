"""The plan turned round."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.published import published
from trtkit.catalog.formats import BACKENDS
from trtkit.errors import ContractError, InputError
from trtkit.plan import Machine, make_plan
from trtkit.plan.chart import page
from trtkit.plan.compare import Field, best_of_each, compare
from trtkit.plan.render import render_candidates
from trtkit.plan.silicon import peak_rate
from trtkit.plan.solve import Unknown, changed, holds_batch, problems_of, solve
from trtkit.plan.types import Basis, Workload

MACHINE = Machine(cores=2, memory_bytes=None)
MACHINE_16 = Machine(cores=2, memory_bytes=16 * 10**9)
MODEL, LARGE = published("llama-3.1-8b"), published("llama-3.3-70b")
FP8 = {"weights": "fp8", "kv_cache": "fp8"}


def contract(contract_with, gpu="l40s", limits=None, quantization=FP8, **engine):
    engine = {"backend": "tensorrt", "gpu": gpu, "limits": limits or {}} | engine
    return contract_with(engine=engine, quantization=quantization)


@given(length=st.integers(256, 8192), gpu=st.sampled_from(["l4", "l40s", "h100-sxm", "h200"]))
def test_the_largest_batch_is_where_the_forward_plan_stops(contract_with, length, gpu):
    asked = contract(contract_with, gpu, {"max_seq_len": length})
    answer = solve(Unknown.MAX_BATCH_SIZE, asked, MODEL, MACHINE)
    assert holds_batch(answer.contract, MODEL, MACHINE)
    assert not holds_batch(changed(asked, max_batch_size=answer.value + 1), MODEL, MACHINE)


SHAPES = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
SIZES = st.one_of(st.none(), st.integers(1, 9000))


@given(
    name=st.sampled_from(["llama-3.1-8b", "mistral-7b-v0.1", "gemma-2-9b"]),
    unknown=st.sampled_from([Unknown.MAX_BATCH_SIZE, Unknown.MAX_SEQ_LEN]),
    limits=st.fixed_dictionaries(dict.fromkeys(SHAPES, SIZES)),
    prompt=SIZES,
)
@settings(max_examples=60, deadline=None)
def test_an_answer_is_planned_and_one_more_is_not(contract_with, name, unknown, limits, prompt):
    model, classes = published(name), {"a": {"priority": 1, "ttft_ms": 500, "max_prompt_tokens": prompt}}
    given = {key: value for key, value in limits.items() if value is not None}
    engine = {"backend": "tensorrt", "gpu": "l40s", "limits": given}
    asked = contract_with(engine=engine, classes=classes)
    try:
        answer = solve(unknown, asked, model, MACHINE)
    except InputError:
        return
    assert holds_batch(answer.contract, model, MACHINE)
    more = changed(answer.contract, **{unknown.value: answer.value + 1})
    assert not holds_batch(more, model, MACHINE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("unknown", Unknown)
def test_each_question_is_answered_on_each_back_end_with_default_limits(contract_with, backend, unknown):
    facts = BACKENDS[backend]
    engine = {"backend": backend, "gpu": "a100-80" if facts.needs_gpu else None}
    makes_sense = {Unknown.GPU: facts.needs_gpu, Unknown.TENSOR_PARALLEL: facts.max_ranks > 1}
    if makes_sense.get(unknown, True):
        solve(unknown, contract_with(engine=engine), published("smollm2-135m"), MACHINE_16)


@pytest.mark.parametrize("backend", ["cpu", "onnx"])
@pytest.mark.parametrize("limits", [{"max_seq_len": 16}, {"max_batch_size": 1000}])
def test_a_step_takes_a_token_of_each_request(contract_with, backend, limits):
    plan = make_plan(
        contract_with(engine={"backend": backend, "limits": limits}), published("smollm2-135m"), MACHINE
    )
    assert plan.limits.max_num_tokens >= plan.limits.max_batch_size


def test_who_asks_for_the_length_is_told_what_stands_in_its_way(contract_with):
    classes = {"long": {"priority": 1, "max_prompt_tokens": 8000}}
    asked = contract_with(engine={"backend": "tensorrt", "gpu": "l4"}, quantization=FP8, classes=classes)
    with pytest.raises(InputError, match=r"of 8001 tokens fit at once, not 256") as caught:
        solve(Unknown.MAX_SEQ_LEN, asked, MODEL, MACHINE)
    assert caught.value.hint.startswith("lower classes.long.max_prompt_tokens, or max_batch_size to ")
    fit = int(caught.value.hint.rpartition(" ")[2])
    assert solve(Unknown.MAX_SEQ_LEN, changed(asked, max_batch_size=fit), MODEL, MACHINE).value >= 8001


@pytest.mark.parametrize(
    ("unknown", "limits", "largest"),
    [
        (Unknown.MAX_BATCH_SIZE, {"max_num_tokens": 64, "max_seq_len": 256}, 64),
        (Unknown.MAX_SEQ_LEN, {"max_input_len": 8000, "max_batch_size": 10}, None),
    ],
)
def test_limits_bound_the_answer(contract_with, unknown, limits, largest):
    answer = solve(unknown, contract(contract_with, limits=limits), MODEL, MACHINE)
    assert answer.value == largest or (largest is None and answer.value > 8000)


def test_what_no_value_cures_is_shown_as_it_is(contract_with):
    for unknown in Unknown:
        wrong = contract(contract_with, "a100-80", build_flags={"nope": 1})
        with pytest.raises(ContractError) as caught:
            solve(unknown, wrong, MODEL, MACHINE)
        assert "engine.build_flags.nope" in {each.key for each in caught.value.problems}


def test_ranks_are_no_question_where_there_is_one(contract_with, smollm2):
    with pytest.raises(InputError, match="one rank"):
        solve(Unknown.TENSOR_PARALLEL, contract_with(), smollm2, MACHINE)


def test_the_fewest_ranks_and_the_smallest_gpu_are_those_that_fit(contract_with):
    asked = contract(contract_with, "h100-sxm", {"max_batch_size": 32}, quantization={})
    answer = solve(Unknown.TENSOR_PARALLEL, asked, LARGE, MACHINE)
    assert answer.value == 2
    assert not problems_of(answer.contract, LARGE, MACHINE)
    assert problems_of(changed(asked, tensor_parallel=1), LARGE, MACHINE)
    smallest = solve(Unknown.GPU, asked, LARGE, MACHINE).value
    assert smallest == "h200"


def test_a_cpu_solves_too(contract_with, smollm2):
    machine = Machine(cores=2, memory_bytes=4 * 10**9)
    asked = contract_with(engine={"limits": {"max_seq_len": 2048}})
    assert 1 < solve(Unknown.MAX_BATCH_SIZE, asked, smollm2, machine).value < 64


@pytest.mark.parametrize("unknown", list(Unknown))
def test_no_answer_is_an_answer(contract_with, unknown):
    huge = published("llama-3.1-405b")
    with pytest.raises(InputError, match="fix:"):
        solve(unknown, contract(contract_with, "l4", quantization={}), huge, MACHINE)


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


def test_a_rate_per_gpu_counts_every_gpu(contract_with):
    asked = contract(contract_with, "h200", pipeline_parallel=2)
    for each in compare(asked, MODEL, MACHINE, Field(("h200",), ("none", "fp8"), (1, 2))):
        summary = each.summary()
        assert each.per_gpu * each.tp * 2 == pytest.approx(each.requests_per_s)
        assert (summary["gpus"], summary["pipeline_parallel"]) == (2 * each.tp, 2)
        assert f"{each.tp} x 2" in render_candidates([each])


@pytest.mark.parametrize("gpu", ["a100-80", "l40s", "h100-sxm", "h200", "b200"])
def test_no_guess_goes_before_what_is_known_at_the_same_peak(contract_with, gpu):
    field = Field((gpu,), workload=Workload(2000, 300))
    found = compare(contract(contract_with, gpu, quantization={}), MODEL, MACHINE, field)
    rows = [each for each in found if each.plan is not None and each.kept]
    known = [(place, each) for place, each in enumerate(rows) if each.basis is not Basis.GUESS]
    assert known
    for place, guess in enumerate(rows):
        if guess.basis is Basis.GUESS:
            rate = peak_rate(guess.gpu, guess.weights)
            alike = [at for at, each in known if peak_rate(each.gpu, each.weights) >= rate]
            assert not alike or min(alike) < place


def test_a_format_of_the_cache_that_a_gpu_has_not_is_said(contract_with):
    asked = contract(contract_with, "h200", quantization={"kv_cache": "int8"})
    rows = [each for each in compare(asked, MODEL, MACHINE, Field(("b200",), ("none",), (1,))) if each.plan]
    assert (rows[0].kv_cache, rows[0].summary()["kv_cache_asked"]) == ("auto", "int8")
    assert "b200: no int8 KV cache" in render_candidates(rows)


def test_every_reason_is_told(contract_with):
    asked = contract(contract_with, "l4", quantization={}, build_flags={"nope": 1})
    (each,) = compare(asked, LARGE, MACHINE, Field(("l4",), ("none",), (1,)))
    assert "nope" in each.why_not
    assert "weights" in each.why_not


def test_those_that_keep_the_promises_come_first_by_rate(candidates):
    possible = [each for each in candidates if each.plan is not None]
    assert [each.kept for each in possible] == sorted((each.kept for each in possible), reverse=True)
    kept = [each.per_gpu for each in possible if each.kept]
    assert kept == sorted(kept, reverse=True)
    assert possible[0].gpu.name == "h200"


def test_a_reader_sees_numbers_and_where_they_come_from(candidates):
    text = render_candidates(best_of_each(candidates))
    assert "prompts of 1000 tokens, answers of 200" in text
    assert "estimates for the tensorrt back end, not measurements" in text
    html = page("<a>", best_of_each(candidates))
    assert html.count("<rect") > 6 * 5
    assert "&lt;a&gt;" in html
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
