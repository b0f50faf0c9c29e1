"""Granite: four multipliers, two of which the engine means otherwise than the source."""

from __future__ import annotations

import math

import pytest

from tests.checkpoint.family import (
    COMMON,
    TINY,
    changed_keys,
    convert_model,
    decoder_shapes,
    gated_shapes,
    keys_of_errors,
    parameters,
    write_model,
)
from trtkit.plan.hf_config import parse_hf_config

GRANITE_8B = COMMON | {
    "architectures": ["GraniteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attention_multiplier": 0.0078125,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "logits_scaling": 16.0,
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "model_type": "granite",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49155,
}
GRANITE = TINY | {
    "architectures": ["GraniteForCausalLM"],
    "attention_multiplier": 0.1,
    "embedding_multiplier": 12,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}


@pytest.fixture
def granite(tmp_path):
    """Write a tiny model."""

    def write(name="hf", **changes):
        config = GRANITE | changes
        mlp = gated_shapes("mlp.", config["hidden_size"], config["intermediate_size"])
        return write_model(tmp_path / name, config, decoder_shapes(config, mlp))

    return write


def test_a_published_model_is_read_to_the_last_weight():
    assert parse_hf_config(GRANITE_8B)[1] == []
    assert parameters(GRANITE_8B) == 8_170_848_256


@pytest.mark.parametrize(("head_dim", "head_size"), [(None, 16), (32, 32)])
def test_multipliers_mean_the_same_in_the_engine(granite, head_dim, head_size):
    config = convert_model(granite(head_dim=head_dim)).config
    # The engine's scores are q.k / sqrt(head size) * attention_multiplier, its logits h.w * output_multiplier_scale.
    assert config["attention_multiplier"] / math.sqrt(head_size) == pytest.approx(0.1)
    assert config["output_multiplier_scale"] == 1 / 8
    assert (config["embedding_multiplier"], config["residual_multiplier"]) == (12.0, 0.22)


def test_scores_without_a_multiplier_are_not_those_of_other_models():
    """transformers then takes 1, not 1 / sqrt(head size)."""
    assert keys_of_errors({k: v for k, v in GRANITE.items() if k != "attention_multiplier"}) == [
        "attention_multiplier"
    ]
    model, _ = parse_hf_config(GRANITE | {"attention_multiplier": 1.0})
    assert model.numerics["attention_multiplier"] == 4.0


def test_other_absent_multipliers_are_one():
    ones = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
    numerics = parse_hf_config({k: v for k, v in GRANITE.items() if k not in ones})[0].numerics
    names = ("embedding_multiplier", "residual_multiplier", "output_multiplier_scale")
    assert [numerics[name] for name in names] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "key", ["attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"]
)
@pytest.mark.parametrize("value", [0, -1.0, "1", True, math.inf, math.nan, 10**400])
def test_a_multiplier_that_is_none_is_refused_as_it_is_written(key, value):
    assert keys_of_errors(GRANITE | {key: value}) == [key]


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, "64", 10**400, [1]])
def test_sizes_that_cannot_be_are_problems_not_crashes(key, value):
    assert key in keys_of_errors(GRANITE | {key: value})


MUTATIONS = {
    "attention_multiplier": (0.2, {"attention_multiplier"}),
    "embedding_multiplier": (6.0, {"embedding_multiplier"}),
    "residual_multiplier": (0.5, {"residual_multiplier"}),
    "logits_scaling": (4.0, {"output_multiplier_scale"}),
    "rope_theta": (5e5, {"rotary_base"}),
    "rms_norm_eps": (1e-6, {"norm_epsilon"}),
    "head_dim": (32, {"head_size", "attention_multiplier"}),
    "tie_word_embeddings": (True, {"tie_word_embeddings"}),
}


@pytest.mark.parametrize("key", MUTATIONS)
def test_no_semantic_field_is_dropped(key, granite):
    value, changed = MUTATIONS[key]
    before, after = convert_model(granite("before")).config, convert_model(granite("after", **{key: value}))
    assert changed_keys(before, after.config) == changed
