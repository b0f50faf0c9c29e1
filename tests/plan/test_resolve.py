from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.errors import ContractError
from trtkit.flow.plan import bare_contract
from trtkit.plan import Machine, make_plan
from trtkit.plan.memory import kv_pool_tokens
from trtkit.plan.render import render


def test_smollm2_int8_weights_are_what_its_parts_add_up_to(contract_with, smollm2, machine):
    plan = make_plan(contract_with(quantization={"weights": "int8-wo"}), smollm2, machine)
    # Per layer: qkv 960x576 + dense 576x576 + fc, gate 1536x576 + proj 576x1536 at one byte, a bfloat16 scale for each
    # of 5184 rows, two norms of 576 bfloat16; then the embedding, which is also the head, and the last norm.
    per_layer = 960 * 576 + 576 * 576 + 3 * 1536 * 576 + 2 * (960 + 576 + 2 * 1536 + 576) + 2 * 2 * 576
    assert plan.memory.weights_bytes == 30 * per_layer + 2 * 49152 * 576 + 2 * 576


def test_a_head_of_its_own_takes_a_table_of_its_own(contract_with, smollm2, machine):
    tied = make_plan(contract_with(), smollm2, machine).memory.weights_bytes
    untied = make_plan(
        contract_with(), replace(smollm2, tie_word_embeddings=False), machine
    ).memory.weights_bytes
    assert untied - tied == 2 * 49152 * 576


def test_zones_follow_from_limits_and_pool(contract_with, smollm2, machine):
    engine = {
        "limits": {"max_batch_size": 8, "max_num_tokens": 256, "max_seq_len": 1024},
        "kv_cache": {"max_tokens": 4096},
    }
    zones = make_plan(contract_with(engine=engine), smollm2, machine).zones
    assert (zones.prefill_tokens, zones.kv_tokens, zones.decode_slots) == (384, 3072, 8)


@given(batch=st.integers(1, 64), length=st.integers(64, 4096), fraction=st.floats(0.05, 1))
def test_the_proposed_pool_holds_a_full_batch_within_its_share(
    contract_with, smollm2, batch, length, fraction
):
    limits = {"max_batch_size": batch, "max_seq_len": length, "max_num_tokens": 64}
    contract = contract_with(
        engine={"limits": limits},
        admission={"kv_fraction": fraction},
        classes={"a": {"priority": 1, "ttft_ms": 5, "default_output_tokens": 8}},
    )
    zones = make_plan(contract, smollm2, Machine(cores=2, memory_bytes=None)).zones
    assert zones.kv_tokens >= batch * length


def test_one_core_is_left_to_server_and_proxy(contract_with, smollm2, machine):
    assert make_plan(contract_with(), smollm2, replace(machine, cores=8)).threads == 7
    assert make_plan(contract_with(), smollm2, replace(machine, cores=1)).threads == 1


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"engine": {"backend": "tensorrt"}}, "engine.gpu"),
        ({"engine": {"build_flags": {"workers": 2}}}, "engine.build_flags"),
        ({"engine": {"tensor_parallel": 2}}, "engine.tensor_parallel"),
        ({"engine": {"gpu": "h100-sxm"}}, "engine.gpu"),
        ({"engine": {"kv_cache": {"tokens_per_block": 64}}}, "engine.kv_cache.tokens_per_block"),
        ({"quantization": {"group_size": 64}}, "quantization.group_size"),
        ({"engine": {"limits": {"max_seq_len": 9000}}}, "engine.limits.max_seq_len"),
        ({"engine": {"limits": {"max_seq_len": 512, "max_input_len": 512}}}, "engine.limits.max_input_len"),
        ({"engine": {"limits": {"max_num_tokens": 16}}}, "engine.limits.max_num_tokens"),
        ({"engine": {"kv_cache": {"max_tokens": 1024}}}, "engine.kv_cache.max_tokens"),
        ({"engine": {"kv_cache": {"max_tokens": 10**7}}}, "engine.kv_cache.max_tokens"),
        ({"engine": {"limits": {"max_batch_size": 200_000, "max_num_tokens": 200_000}}}, "engine.limits"),
        ({"classes": {"a": {"priority": 1, "max_prompt_tokens": 4000}}}, "classes.a.max_prompt_tokens"),
        (
            {"classes": {"a": {"priority": 1, "default_output_tokens": 4000}}},
            "classes.a.default_output_tokens",
        ),
        ({"classes": {"a": {"priority": 1, "ttft_ms": 500, "deadline_ms": 400}}}, "classes.a.deadline_ms"),
    ],
)
def test_each_impossible_wish_is_refused_by_its_key_and_with_a_fix(
    contract_with, smollm2, machine, sections, key
):
    with pytest.raises(ContractError) as caught:
        make_plan(contract_with(**sections), smollm2, machine)
    problems = {problem.key: problem for problem in caught.value.problems}
    assert key in problems
    assert problems[key].hint


@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_rotary_scaling_that_the_back_end_does_not_run_is_refused(contract_with, smollm2, machine, kind):
    with pytest.raises(ContractError, match=f"does not run this model's {kind} rotary scaling") as caught:
        make_plan(contract_with(), replace(smollm2, rotary_scaling={"type": kind, "factor": 2.0}), machine)
    assert [(problem.key, bool(problem.hint)) for problem in caught.value.problems] == [
        ("model.source", True)
    ]


def test_two_classes_of_one_priority_are_a_warning(contract_with, smollm2, machine):
    classes = {name: {"priority": 1, "ttft_ms": 500} for name in ("a", "b")}
    (warning,) = make_plan(contract_with(classes=classes), smollm2, machine).warnings
    assert warning.key == "classes.b.priority"
    assert "`priority` parameter means a" in warning.message


def test_a_default_that_nobody_wrote_is_no_reason_to_refuse_a_small_model(contract_with, smollm2, machine):
    plan = make_plan(contract_with(), replace(smollm2, max_position_embeddings=64), machine)
    assert plan.limits.max_seq_len == 64


def test_a_class_without_promise_is_a_warning(contract_with, smollm2, machine):
    plan = make_plan(contract_with(classes={"a": {"priority": 1}}), smollm2, machine)
    assert [warning.key for warning in plan.warnings] == ["classes.a"]


@given(
    wanted=st.integers(0, 10**6),
    free=st.integers(-(10**9), 10**12),
    fraction=st.floats(0.01, 1),
    more=st.integers(0, 10**9),
)
def test_the_pool_is_whole_blocks_within_its_share_and_grows_with_memory(wanted, free, fraction, more):
    def pool(free_bytes: int) -> int:
        return kv_pool_tokens(
            wanted_tokens=wanted,
            bytes_per_token=1000,
            free_bytes=free_bytes,
            fraction=fraction,
            tokens_per_block=32,
        )

    tokens = pool(free)
    assert tokens % 32 == 0
    assert tokens <= wanted
    assert tokens * 1000 <= fraction * max(free, 0) + 1
    assert pool(free + more) >= tokens


def test_a_person_sees_every_zone(contract_with, smollm2):
    text = render(make_plan(contract_with(), smollm2, Machine(cores=2, memory_bytes=None)))
    for part in ("prefill", "KV per token", "decode", "unknown"):
        assert part in text


@pytest.mark.parametrize("name", ["405", "2025-01-15", "no", "null", "1e5", "010"])
def test_a_model_of_any_name_is_planned_under_it(name, tmp_path):
    assert bare_contract(tmp_path / f"{name}.json", ()).contract.name == name
