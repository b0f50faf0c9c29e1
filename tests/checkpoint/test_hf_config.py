"""``config.json``: both generations of spellings, and nothing dropped silently."""

from __future__ import annotations

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.architectures.fields import NEUTRAL, RESTATED
from trtkit.catalog.architectures.model_types import CLASS_OF, OTHERS
from trtkit.checkpoint.hf import read_json
from trtkit.errors import ContractError, InputError, Severity
from trtkit.plan.hf_config import parse_hf_config

RAW = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "vocab_size": 260,
    "torch_dtype": "bfloat16",
    "eos_token_id": 257,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def parse(generation=None, **changes):
    return parse_hf_config({**RAW, **changes}, generation=generation)


def keys_of_errors(**changes) -> list[str]:
    with pytest.raises(ContractError) as caught:
        parse(**changes)
    return [problem.key for problem in caught.value.problems]


def test_what_a_key_leaves_out_follows_the_family():
    config, warnings = parse()
    assert (config.num_kv_heads, config.head_size, config.rotary_base) == (4, 16, 10_000.0)
    assert {config.attn_bias, config.mlp_bias, config.tie_word_embeddings} == {False}
    assert warnings == []


@pytest.mark.parametrize(
    ("head_dim", "head_size"),
    [(32, 32), (None, 16)],
)
def test_head_dim_wins_over_division_and_null_is_no_value(head_dim, head_size):
    assert parse(head_dim=head_dim)[0].head_size == head_size


def test_nulls_are_absent_values():
    config, _ = parse(num_key_value_heads=None, attention_bias=None, rope_scaling=None)
    assert (config.num_kv_heads, config.attn_bias, config.rotary_scaling) == (4, False, None)


def test_both_generations_of_spellings_mean_the_same():
    old, _ = parse(rope_theta=5e5, rope_scaling=LLAMA3)
    raw = {k: v for k, v in RAW.items() if k != "torch_dtype"}
    new, _ = parse_hf_config({**raw, "dtype": "bfloat16", "rope_parameters": {**LLAMA3, "rope_theta": 5e5}})
    assert old == new
    assert old.rotary_scaling == {**LLAMA3, "type": "llama3"}
    typed = {**LLAMA3, "type": "llama3"}
    del typed["rope_type"]
    assert parse(rope_theta=5e5, rope_scaling=typed)[0] == old


def test_the_length_that_is_extended_may_stand_beside_its_block():
    inside = {key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"}
    assert parse(rope_scaling=inside, original_max_position_embeddings=64) == parse(rope_scaling=LLAMA3)
    assert parse(original_max_position_embeddings=64) == parse()


def test_both_blocks_may_say_the_same():
    new = {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
    assert parse(rope_scaling=LLAMA3, rope_theta=5e5, **new) == parse(**new)


def test_default_rope_is_no_scaling():
    assert parse(rope_parameters={"rope_type": "default", "rope_theta": 5e5})[0].rotary_scaling is None


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_parameters.rope_theta"),
        ({"rope_scaling": {**LLAMA3, "type": "linear"}}, "rope_scaling"),
        ({"rope_scaling": LLAMA3, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        (
            {
                "rope_scaling": {"type": "default"},
                "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
            },
            "rope_scaling",
        ),
        (
            {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
            "rope_scaling.original_max_position_embeddings",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 1e30}}, "rope_scaling.factor"),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 10**30}},
            "rope_scaling.original_max_position_embeddings",
        ),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": -1.0}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": math.nan}}, "rope_scaling.factor"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "rope_scaling.high_freq_factor"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 1.0}}, "rope_scaling.alpha"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": 5}}, "rope_scaling.rope_type"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "attention_factor": 2.0,
                }
            },
            "rope_scaling.attention_factor",
        ),
        ({"dtype": "float16"}, "torch_dtype"),
        ({"attention_bias": True, "bias": False}, "bias"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": 66}, "head_dim"),
        ({"head_dim": 15}, "head_dim"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"attention_bias": "no"}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"torch_dtype": "int8"}, "torch_dtype"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": -1}, "sliding_window"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rotary_dim": 8}, "rotary_dim"),
        ({"rotary_emb_base": 5e5}, "rotary_emb_base"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"use_parallel_residual": True}, "use_parallel_residual"),
        ({"rms_norm_add_unit_offset": True}, "rms_norm_add_unit_offset"),
        ({"scale_emb": 12, "scale_depth": None}, "scale_emb"),
        ({"causal": False}, "causal"),
        ({"sliding_window": "x"}, "sliding_window"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"model_type": "gemma"}, "model_type"),
        ({"model_type": "cohere"}, "model_type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_honoured_is_refused_by_its_key(changes, key):
    assert keys_of_errors(**changes) == [key]


def test_all_problems_come_at_once_and_name_the_file():
    with pytest.raises(ContractError) as caught:
        parse_hf_config({"architectures": ["LlamaForCausalLM"]}, file="models/x/config.json")
    assert len(caught.value.problems) == 7
    assert "models/x/config.json: hidden_size: the field is missing" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 128},
        {"sliding_window": 64, "use_sliding_window": False},
        {"layer_types": ["full_attention"] * 2},
        {"embedding_multiplier": 1.0, "attn_logit_softcapping": None, "partial_rotary_factor": 1.0},
        {"transformers_version": "99.0", "use_cache": True, "pretraining_tp": 2},
        {"model_type": "from-the-future"},
        {
            "rotary_dim": 16,
            "rotary_emb_base": 10_000,
            "use_parallel_residual": False,
            "rope_interleaved": False,
        },
    ],
)
def test_what_changes_nothing_is_taken_without_a_word(changes):
    assert parse(**changes) == parse()


def test_an_unknown_field_is_a_warning_with_its_name():
    _, warnings = parse(flux_capacitance=1.21, auto_map={"AutoModel": "x.Y"})
    assert [problem.key for problem in warnings] == ["flux_capacitance", "auto_map"]
    assert {problem.severity for problem in warnings} == {Severity.WARNING}


def test_an_unknown_architecture_is_named_with_the_supported_ones():
    with pytest.raises(
        ContractError, match=r"'MambaForCausalLM' is not supported\n.*LlamaForCausalLM"
    ) as caught:
        parse(architectures=["MambaForCausalLM"])
    assert caught.value.exit_code == 2


def test_families_are_named_where_they_contradict():
    with pytest.raises(ContractError, match="'qwen3' is Qwen3ForCausalLM, and architectures says LlamaFor"):
        parse(model_type="qwen3")
    _, (warning,) = parse(architectures=["LlamaForCausalLM", "GPT2LMHeadModel"])
    assert "LlamaForCausalLM is taken, not GPT2LMHeadModel" in warning.message


def test_every_class_of_the_catalog_has_its_model_type():
    assert set(CLASS_OF.values()) == set(ARCHITECTURES)
    assert not OTHERS & CLASS_OF.keys()


def test_generation_config_names_the_ends_of_an_answer():
    config, _ = parse({"eos_token_id": [258, 259, 258], "pad_token_id": 0}, eos_token_id=257, pad_token_id=-1)
    assert (config.eos_token_ids, config.pad_token_id) == ((258, 259), 0)


def test_a_bad_token_names_the_file_it_is_in():
    with pytest.raises(ContractError) as caught:
        parse_hf_config(RAW, file="models/x/config.json", generation={"eos_token_id": "</s>"})
    assert str(caught.value).startswith("models/x/generation_config.json: eos_token_id: must be a token id")


def test_a_window_that_is_no_number_is_no_advice():
    with pytest.raises(ContractError) as caught:
        parse(sliding_window="x")
    assert "must be a number of tokens or null, is 'x'" in str(caught.value)
    assert "lower" not in str(caught.value)


def test_tokens_that_cannot_occur_are_warned_of():
    _, warnings = parse(eos_token_id=999)
    assert [(problem.key, problem.file) for problem in warnings] == [("eos_token_id", "config.json")]
    _, warnings = parse({"eos_token_id": 999})
    assert [(problem.key, problem.file) for problem in warnings] == [
        ("eos_token_id", "generation_config.json")
    ]
    assert parse(eos_token_id=None)[1][0].key == "eos_token_id"


def test_mistral_without_the_key_has_its_window_in_force():
    mistral = {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    model, warnings = parse(**mistral, max_position_embeddings=32768)
    assert model.sliding_window == 4096
    assert [warning.key for warning in warnings] == ["sliding_window"]
    assert parse(**mistral, max_position_embeddings=32768, sliding_window=None)[0].num_kv_heads == 2
    assert keys_of_errors(architectures=["MistralForCausalLM"]) == ["num_key_value_heads"]


KEYS = [
    "architectures",
    "hidden_act",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "dtype",
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
)


@given(st.dictionaries(st.sampled_from([*RAW, *KEYS, *NEUTRAL, *RESTATED]), JSON, max_size=3))
def test_whatever_a_file_says_it_is_a_config_or_a_list_of_problems(changes):
    try:
        config, _ = parse(**changes)
    except ContractError:
        return
    assert min(config.num_heads, config.head_size, config.num_layers, config.vocab_size) > 0


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="is no file"):
        read_json(tmp_path / "config.json")
