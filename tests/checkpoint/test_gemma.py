"""Gemma 1, 2 and 3: norms around 0, one activation under many names, caps, and local layers."""

from __future__ import annotations

import numpy as np
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
from trtkit.catalog.parallel import Parallelism
from trtkit.errors import ContractError
from trtkit.plan.hf_config import parse_hf_config

PUBLISHED = COMMON | {
    "attention_bias": False,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "vocab_size": 256000,
}
GEMMA_2B = PUBLISHED | {
    "architectures": ["GemmaForCausalLM"],
    "hidden_act": "gelu",
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "model_type": "gemma",
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "rope_scaling": None,
}
GEMMA2_9B = PUBLISHED | {
    "architectures": ["Gemma2ForCausalLM"],
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
}
GEMMA3_1B = PUBLISHED | {
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
GEMMA = TINY | {
    "architectures": ["GemmaForCausalLM"],
    "head_dim": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
GEMMA2 = GEMMA | {
    "architectures": ["Gemma2ForCausalLM"],
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "query_pre_attn_scalar": 48,
    "sliding_window": 16,
}
GEMMA3 = GEMMA | {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 3,
    "query_pre_attn_scalar": 48,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "sliding_window": 16,
    "sliding_window_pattern": 3,
}
FAMILIES = {"gemma": GEMMA, "gemma2": GEMMA2, "gemma3": GEMMA3}


@pytest.fixture
def gemma(tmp_path):
    """Write a tiny model of a family."""

    def write(family, name="hf", **changes):
        config = FAMILIES[family] | changes
        layer = gated_shapes("mlp.", config["hidden_size"], config["intermediate_size"])
        if family != "gemma":
            layer |= {f"{side}_feedforward_layernorm.weight": (64,) for side in ("pre", "post")}
        if family == "gemma3":
            layer |= {f"self_attn.{side}_norm.weight": (config["head_dim"],) for side in "qk"}
        return write_model(tmp_path / name, config, decoder_shapes(config, layer))

    return write


@pytest.mark.parametrize(
    ("config", "count", "warned"),
    [
        (GEMMA_2B, 2_506_172_416, []),
        (GEMMA2_9B, 9_241_705_984, ["sliding_window"]),
        (GEMMA3_1B, 999_885_952, ["sliding_window"]),
    ],
    ids=["1-2b", "2-9b", "3-1b"],
)
def test_published_models_are_read_to_the_last_weight(config, count, warned):
    assert [problem.key for problem in parse_hf_config(config)[1]] == warned
    assert parameters(config) == count


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_is_given_one_plus_every_norm(gemma, family):
    folder = gemma(family)
    checkpoint = convert_model(folder)
    norms = [name for name in checkpoint.names if name.endswith("norm.weight") or "ln_f" in name]
    per_layer = {"gemma": 2, "gemma2": 4, "gemma3": 6}[family]
    assert len(norms) == per_layer * FAMILIES[family]["num_hidden_layers"] + 1
    # The sources are drawn around 0.
    means = [float(np.mean(checkpoint.tensor(name))) for name in norms]
    assert np.allclose(means, 1, atol=0.6)
    assert abs(np.mean(means) - 1) < 0.2


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ({"hidden_act": "gelu"}, []),
        ({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, []),
        ({"hidden_act": None, "hidden_activation": None}, []),
        ({"hidden_act": "silu"}, ["hidden_act"]),
        ({"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"}, ["hidden_act"]),
    ],
)
def test_every_gelu_is_the_one_that_gemma_was_trained_with(names, error):
    assert keys_of_errors(GEMMA | names) == error
    if not error:
        config, warnings = parse_hf_config(GEMMA | names)
        assert config == parse_hf_config(GEMMA)[0]
        # Alone it is another function, if only by 0.0005.
        assert [each.key for each in warnings] == ["hidden_act"] * (names == {"hidden_act": "gelu"})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_embedding_is_shared_by_the_ranks_as_the_engine_expects(gemma, family, tp):
    checkpoint = convert_model(gemma(family), Parallelism(tp=tp))
    rows = {rank["transformer.vocab_embedding.weight"].shape[0] for rank in checkpoint.ranks}
    assert rows == {260 // tp}
    assert checkpoint.config["use_parallel_embedding"] is (tp > 1)


def test_a_vocabulary_that_does_not_divide_is_refused(gemma):
    with pytest.raises(ContractError, match=r"cannot pad the vocabulary of 261 to 2 ranks"):
        convert_model(gemma("gemma", vocab_size=261), Parallelism(tp=2))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_number_of_kv_heads_is_required_since_the_default_is_another_models(family):
    for absent in ({}, {"num_key_value_heads": None}):
        config = {k: v for k, v in FAMILIES[family].items() if k != "num_key_value_heads"} | absent
        assert keys_of_errors(config) == ["num_key_value_heads"]


def test_absent_and_null_caps_are_not_the_same():
    absent = {key: value for key, value in GEMMA2.items() if not key.endswith("softcapping")}
    assert parse_hf_config(absent)[0] == parse_hf_config(GEMMA2)[0]
    numerics = parse_hf_config(absent | {"attn_logit_softcapping": None, "final_logit_softcapping": None})[
        0
    ].numerics
    assert numerics == {
        "query_pre_attn_scalar": 48,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }


def test_local_layers_keep_their_base_without_a_window(gemma):
    assert parse_hf_config(GEMMA3 | {"max_position_embeddings": 16})[0].sliding_window is None
    config = convert_model(gemma("gemma3", max_position_embeddings=16)).config
    assert config["rope_local_base_freq"] == 10000.0
    assert config["_sliding_window_pattern"] == config["sliding_window_pattern"] == 3


LOCAL, GLOBAL = "sliding_attention", "full_attention"


def kinds_of_rope(**of_local):
    """Return GEMMA3 as transformers 5 spells it."""
    config = {k: v for k, v in GEMMA3.items() if k not in ("rope_theta", "rope_local_base_freq")}
    local = {"rope_type": "default", "rope_theta": 10000.0, **of_local}
    return config | {"rope_parameters": {GLOBAL: {"rope_type": "default", "rope_theta": 1e6}, LOCAL: local}}


def test_both_generations_of_rotary_parameters_mean_the_same():
    config = kinds_of_rope()
    assert parse_hf_config(config) == parse_hf_config(GEMMA3)
    # What transformers 5 writes beside the kinds
    config["rope_parameters"] |= {"rope_type": "default", "rope_theta": None}
    assert parse_hf_config(config) == parse_hf_config(GEMMA3)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (kinds_of_rope() | {"rope_local_base_freq": 5e3}, "rope_parameters.sliding_attention.rope_theta"),
        (kinds_of_rope() | {"rope_theta": 5e3}, "rope_parameters.rope_theta"),
        (kinds_of_rope(rope_type="linear", factor=8.0), "rope_parameters.sliding_attention.rope_type"),
        (kinds_of_rope(partial_rotary_factor=0.5), "rope_parameters.sliding_attention.partial_rotary_factor"),
        (GEMMA3 | {"rope_parameters": {GLOBAL: {"rope_theta": 1e6}}}, "rope_parameters"),
        (GEMMA3 | {"rope_parameters": {"rope_theta": 5e5}}, "rope_parameters.rope_theta"),
        (GEMMA3 | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters.rope_type"),
        (GEMMA3 | {"rope_parameters": {GLOBAL: 1, LOCAL: 2}}, "rope_parameters.full_attention"),
        (GEMMA2 | {"rope_parameters": {GLOBAL: {"rope_theta": 1e4}, LOCAL: {"rope_theta": 1e4}}}, "rope_parameters"),
        (GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_scaling.rope_type"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        (GEMMA3 | {"sliding_window": None}, "sliding_window"),
        (GEMMA3 | {"query_pre_attn_scalar": None}, "query_pre_attn_scalar"),
        (GEMMA3 | {"_sliding_window_pattern": 2}, "_sliding_window_pattern"),
        (GEMMA3 | {"layer_types": [GLOBAL] * 3}, "layer_types"),
        (GEMMA3 | {"layer_types": [LOCAL, GLOBAL, LOCAL]}, "layer_types"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA2 | {"layer_types": [GLOBAL, LOCAL]}, "layer_types"),
        (GEMMA2 | {"sliding_window_pattern": 3}, "sliding_window_pattern"),
        (GEMMA2 | {"sliding_window_size": 8}, "sliding_window_size"),
        (GEMMA2 | {"use_sliding_window": False}, "use_sliding_window"),
        (GEMMA2 | {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        (GEMMA | {"query_pre_attn_scalar": 48}, "query_pre_attn_scalar"),
        (GEMMA | {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        (GEMMA | {"sliding_window": 16}, "sliding_window"),
        (GEMMA | {"mlp_bias": True}, "mlp_bias"),
    ],
)  # fmt: skip
def test_what_the_engine_cannot_honour_is_refused_by_its_key(config, key):
    assert key in keys_of_errors(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": [LOCAL, LOCAL, GLOBAL], "_sliding_window_pattern": 3},
        {"use_bidirectional_attention": False},
        {"final_logit_softcapping": None, "attn_logit_softcapping": None},
    ],
)
def test_what_changes_nothing_is_taken_without_a_word(changes):
    assert parse_hf_config(GEMMA3 | changes) == parse_hf_config(GEMMA3)


MUTATIONS = {
    "gemma": {
        "rope_theta": (5e5, {"rotary_base"}),
        "rope_scaling": ({"rope_type": "linear", "factor": 2.0}, {"rotary_scaling"}),
        "rms_norm_eps": (1e-6, {"norm_epsilon"}),
        "head_dim": (16, {"head_size"}),
        "tie_word_embeddings": (False, {"tie_word_embeddings"}),
    },
    "gemma2": {
        "attn_logit_softcapping": (40.0, {"attn_logit_softcapping"}),
        "final_logit_softcapping": (20.0, {"final_logit_softcapping"}),
        "query_pre_attn_scalar": (32, {"query_pre_attn_scalar"}),
        "sliding_window": (8, {"sliding_window"}),
    },
    "gemma3": {
        "final_logit_softcapping": (20.0, {"final_logit_softcapping"}),
        "query_pre_attn_scalar": (32, {"query_pre_attn_scalar"}),
        "rope_local_base_freq": (5e5, {"rope_local_base_freq"}),
        "sliding_window": (8, {"sliding_window"}),
        "sliding_window_pattern": (2, {"sliding_window_pattern", "_sliding_window_pattern"}),
    },
}
FIELDS = [(family, key) for family, fields in MUTATIONS.items() for key in fields]


@pytest.mark.parametrize(("family", "key"), FIELDS)
def test_no_semantic_field_is_dropped(gemma, family, key):
    value, changed = MUTATIONS[family][key]
    before, after = (
        convert_model(gemma(family, "before")),
        convert_model(gemma(family, "after", **{key: value})),
    )
    assert changed_keys(before.config, after.config) == changed


def test_a_flag_for_biases_that_are_not_there_is_refused(gemma):
    with pytest.raises(ContractError, match=r"self_attn\.q_proj\.bias: the tensor is missing"):
        convert_model(gemma("gemma", attention_bias=True))


def test_the_multimodal_wrapper_is_refused_with_the_way_to_its_text_model():
    with pytest.raises(
        ContractError, match=r"'Gemma3ForConditionalGeneration' is not supported\n.*text_config"
    ):
        parse_hf_config({"architectures": ["Gemma3ForConditionalGeneration"]})
