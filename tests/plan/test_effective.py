"""What the builder makes of its flags, row by row of its own tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.published import published
from trtkit.plan.effective import Ask, attention_settings, build_effect
from trtkit.plan.resolve import quant_plan
from trtkit.plan.types import EngineLimits

MODEL = published("llama-3.1-8b")
LIMITS = EngineLimits(64, 4096, 8192, 8192, 32)
ON, OFF = "enable", "disable"


def ask(weights="none", kv_cache="auto", sm=90, tp=1, **flags):
    return Ask(MODEL, quant_plan(weights, kv_cache), sm, tp, flags)


@pytest.mark.parametrize(
    ("asked", "paged", "fp8"),
    [
        (ask(), ON, OFF),
        (ask("fp8"), ON, OFF),
        (ask("fp8", "fp8"), ON, ON),
        (ask("fp8", "fp8", use_fp8_context_fmha=OFF), ON, ON),
        (ask("fp8", "fp8", use_paged_context_fmha=OFF), OFF, ON),
        (ask("w4a8-awq", "fp8"), ON, ON),
        (ask("fp8-rowwise", "fp8"), OFF, OFF),
        (ask("int4-awq", "fp8"), OFF, OFF),
        (ask("none", "fp8"), OFF, OFF),
        (ask("fp8", "fp8", sm=86), OFF, OFF),
        (ask("int8-sq", "int8"), OFF, OFF),
        (ask("fp8", "int8"), OFF, OFF),
        (ask("fp8", "fp8", context_fmha=OFF), OFF, OFF),
    ],
)
def test_the_first_row_of_the_attention_table_that_fits_decides(asked, paged, fp8):
    settings = {each.name: each for each in attention_settings(asked)}
    found = [settings[name] for name in ("use_paged_context_fmha", "use_fp8_context_fmha")]
    assert [each.effective for each in found] == [paged, fp8]
    assert all(each.reason for each in found if each.effective != each.asked)


def limits_of(asked, **changes):
    return build_effect(asked, replace(LIMITS, **changes)).limits


def test_a_step_is_no_longer_than_all_sequences_and_no_shorter_than_a_block():
    assert limits_of(ask(), max_batch_size=2, max_seq_len=1024).max_num_tokens == 2048
    assert limits_of(ask(), max_num_tokens=8).max_num_tokens == 32


def test_without_fused_attention_a_step_holds_the_longest_prompt():
    assert limits_of(ask(context_fmha=OFF), max_num_tokens=1024).max_num_tokens == 4096


def test_kept_padding_makes_every_step_as_long_as_can_be():
    assert limits_of(ask(remove_input_padding=OFF)).max_num_tokens == 64 * 8192


def test_drafts_lengthen_sequences_and_steps():
    asked = ask(speculative_decoding_mode="draft_tokens_external", max_draft_len=10)
    effect = build_effect(asked, replace(LIMITS, max_num_tokens=512))
    assert effect.limits.max_num_tokens == 64 * 11
    assert {each.name: each.effective for each in effect.settings}["max_seq_len"] == "8202"
    # What a request may have is what was asked for.
    assert effect.limits.max_seq_len == 8192


@pytest.mark.parametrize(
    ("flags", "tokens"), [({}, 64), ({"opt_num_tokens": 9000}, 8192), ({"opt_num_tokens": 16}, 16)]
)
def test_the_optimum_is_derived_or_clipped(flags, tokens):
    settings = build_effect(ask(**flags), LIMITS).settings
    assert {each.name: each.effective for each in settings}["opt_num_tokens"] == str(tokens)


@pytest.mark.parametrize(
    ("asked", "name", "effective"),
    [
        (ask(), "use_fused_mlp", ON),
        (ask("int4-awq"), "use_fused_mlp", OFF),
        (replace(ask(), model=published("gemma-2-9b")), "use_fused_mlp", OFF),
        (ask(reduce_fusion=ON), "reduce_fusion", OFF),
        (ask(tp=2, reduce_fusion=ON), "reduce_fusion", ON),
        (ask(tp=2, user_buffer=ON), "user_buffer", OFF),
        (ask("fp8", tp=2, reduce_fusion=ON, user_buffer=ON), "user_buffer", ON),
        (ask(norm_quant_fusion=ON), "norm_quant_fusion", OFF),
    ],
)
def test_fusions_are_dropped_with_a_reason(asked, name, effective):
    (found,) = [each for each in build_effect(asked, LIMITS).settings if each.name == name]
    assert found.effective == effective
    assert bool(found.reason) == (found.asked != effective)
