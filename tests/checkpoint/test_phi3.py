"""Phi-3 and Phi-4: fused projections, heads rotated in part, and LongRoPE in all its spellings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.checkpoint.family import (
    COMMON,
    TINY,
    changed_keys,
    convert_model,
    keys_of_errors,
    model_writer,
    parameters,
)
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.safetensors import read_header
from trtkit.errors import ContractError
from trtkit.plan.hf_config import parse_hf_config

PHI3_MINI = COMMON | {
    "_name_or_path": "Phi-3-mini-4k-instruct",
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "vocab_size": 32064,
}
LONG_48 = {"type": "longrope", "short_factor": [1.05] * 48, "long_factor": [1.0 + i for i in range(48)]}
PHI3_MINI_128K = PHI3_MINI | {
    "max_position_embeddings": 131072,
    "rope_scaling": LONG_48,
    "sliding_window": 262144,
}
PHI4 = PHI3_MINI | {
    "bos_token_id": 100257,
    "eos_token_id": 100265,
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "max_position_embeddings": 16384,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "num_key_value_heads": 10,
    "original_max_position_embeddings": 16384,
    "pad_token_id": 100257,
    "rope_theta": 250000,
    "sliding_window": None,
    "vocab_size": 100352,
}
PHI4_MINI = PHI3_MINI_128K | {
    "bos_token_id": 199999,
    "eos_token_id": 199999,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "pad_token_id": 199999,
    "partial_rotary_factor": 0.75,
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}
ORIGINAL, PARTIAL = "original_max_position_embeddings", "partial_rotary_factor"
PHI3 = TINY | {"architectures": ["Phi3ForCausalLM"], ORIGINAL: 32}
# From 32 to 128 tokens: the factor is 4.
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0 + i for i in range(8)],
    ORIGINAL: 32,
}
ATTENTION_FACTOR = math.sqrt(1 + math.log(4) / math.log(32))


def shapes(config):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    rows = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * head
    found = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        here = f"model.layers.{layer}."
        found |= {
            here + "input_layernorm.weight": (hidden,),
            here + "post_attention_layernorm.weight": (hidden,),
            here + "self_attn.qkv_proj.weight": (rows, hidden),
            here + "self_attn.o_proj.weight": (hidden, hidden),
            here + "mlp.gate_up_proj.weight": (2 * inner, hidden),
            here + "mlp.down_proj.weight": (hidden, inner),
        }
    return found | {"model.norm.weight": (hidden,)}


@pytest.fixture
def phi3(tmp_path):
    """Write a tiny model."""
    return model_writer(tmp_path, PHI3, shapes)


@pytest.mark.parametrize(
    ("config", "count", "warned"),
    [
        (PHI3_MINI, 3_821_079_552, ["sliding_window"]),
        (PHI3_MINI_128K, 3_821_079_552, []),
        (PHI4, 14_659_507_200, []),
        (PHI4_MINI, 3_836_021_760, []),
    ],
    ids=["3-mini", "3-mini-128k", "4", "4-mini"],
)
def test_published_models_are_read_to_the_last_weight(config, count, warned):
    assert [problem.key for problem in parse_hf_config(config)[1]] == warned
    assert parameters(config) == count


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_fused_tensors_are_divided_inside_each_of_their_parts(phi3, tp):
    folder = phi3()
    source = read_header(folder / "model.safetensors")
    qkv, gate_up = (
        source[f"model.layers.1.{name}.weight"].read() for name in ("self_attn.qkv_proj", "mlp.gate_up_proj")
    )
    (q, k, v), (gate, up) = np.split(qkv, [64, 96]), np.split(gate_up, 2)
    checkpoint = convert_model(folder, Parallelism(tp=tp))
    for rank in range(tp):
        here = "transformer.layers.1."
        # Four ranks hold two KV heads: two of them the same one.
        part = rank * min(tp, 2) // tp
        heads = [np.split(q, tp)[rank], *(np.split(side, min(tp, 2))[part] for side in (k, v))]
        np.testing.assert_array_equal(
            checkpoint.tensor(here + "attention.qkv.weight", rank), np.concatenate(heads)
        )
        halves = [np.split(side, tp)[rank] for side in (up, gate)]
        np.testing.assert_array_equal(checkpoint.tensor(here + "mlp.fc.weight", rank), np.concatenate(halves))


@pytest.mark.parametrize(
    ("ranks", "message"), [(Parallelism(tp=3), "4 query heads"), (Parallelism(pp=2), "at most 1 stage")]
)
def test_layouts_that_the_engine_cannot_have_are_refused(phi3, ranks, message):
    with pytest.raises(ContractError, match=message):
        convert_model(phi3(), ranks)


def test_long_rope_is_told_in_the_keys_of_its_class(phi3):
    config = convert_model(phi3(rope_scaling=LONG, partial_rotary_factor=1.0)).config
    keys = (
        "position_embedding_type",
        "rotary_scaling",
        "rotary_pct",
        "original_max_position_embeddings",
        "max_position_embeddings",
        "longrope_scaling_short_factors",
        "longrope_scaling_long_factors",
    )
    assert [config[key] for key in keys] == [
        "long_rope",
        None,
        1.0,
        32,
        128,
        LONG["short_factor"],
        LONG["long_factor"],
    ]


def moved():
    """Return LongRoPE with the original length beside the block, where published files have it."""
    inside = {key: value for key, value in LONG.items() if key != ORIGINAL}
    return PHI3 | {"rope_scaling": inside}


@pytest.mark.parametrize(
    "config",
    [
        moved(),
        PHI3 | {"rope_scaling": {**LONG, "rope_type": "su"}},
        PHI3 | {"rope_parameters": {**LONG, "rope_theta": 1e4, "partial_rotary_factor": 1.0}, "rope_theta": None},
        PHI3 | {"rope_scaling": {**LONG, "factor": 4, "attention_factor": ATTENTION_FACTOR}},
    ],
)  # fmt: skip
def test_all_spellings_of_long_rope_mean_the_same(config):
    ours, _ = parse_hf_config(config)
    theirs, _ = parse_hf_config(PHI3 | {"rope_scaling": LONG})
    read = ("rope_type", "short_factor", "long_factor", "original_max_position_embeddings")
    assert [ours.rotary_scaling[key] for key in read] == [theirs.rotary_scaling[key] for key in read]


def test_the_original_length_is_4096_unless_told():
    assert parse_hf_config(moved() | {ORIGINAL: None})[0].rotary_scaling[ORIGINAL] == 4096


def test_without_long_rope_the_original_length_means_nothing():
    assert parse_hf_config(PHI3 | {ORIGINAL: 4096}) == parse_hf_config(PHI3)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rope_scaling": LONG, ORIGINAL: 64}, f"rope_scaling.{ORIGINAL}"),
        # transformers goes by its default then.
        ({"rope_scaling": LONG, ORIGINAL: None}, f"rope_scaling.{ORIGINAL}"),
        ({"rope_parameters": LONG, ORIGINAL: None}, f"rope_parameters.{ORIGINAL}"),
        ({"rope_scaling": {**LONG, "factor": 8.0}}, "rope_scaling.factor"),
        ({"rope_scaling": {**LONG, "attention_factor": 1.0}}, "rope_scaling.attention_factor"),
        ({"rope_scaling": {**LONG, "short_factor": [1.0] * 7}}, "rope_scaling.short_factor"),
        ({"rope_scaling": {**LONG, "short_factor": [1.0] * 7 + [0.0]}}, "rope_scaling.short_factor"),
        ({"rope_scaling": {**LONG, "long_factor": 2.0}}, "rope_scaling.long_factor"),
        ({"rope_scaling": {**LONG, "long_factor": None}}, "rope_scaling.long_factor"),
        ({"rope_scaling": {**LONG, ORIGINAL: "32"}}, f"rope_scaling.{ORIGINAL}"),
        ({"rope_scaling": {**LONG, "short_mscale": 1.1}}, "rope_scaling.short_mscale"),
        ({"rope_scaling": {**LONG, "long_factor": [2.0] * 9}}, "rope_scaling.long_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"partial_rotary_factor": 0.5, "rotary_pct": 0.25}, "rotary_pct"),
        ({PARTIAL: 0.5, "rope_parameters": {"rope_theta": 1e4, PARTIAL: 0.25}}, f"rope_parameters.{PARTIAL}"),
        ({"partial_rotary_factor": 0.5, "rotary_dim": 16}, "rotary_dim"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.05}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": "0.5"}, "partial_rotary_factor"),
        ({"head_dim": 32}, "head_dim"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"lm_head_bias": True}, "lm_head_bias"),
        ({"interpolate_factor": 2}, "interpolate_factor"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)  # fmt: skip
def test_what_the_engine_cannot_honour_is_refused_by_its_key(changes, key):
    assert keys_of_errors(PHI3 | changes) == [key]


@pytest.mark.parametrize(
    "part",
    [
        {"partial_rotary_factor": 0.5},
        {"rotary_pct": 0.5},
        {"partial_rotary_factor": 0.5, "rotary_pct": 0.5, "rotary_dim": 8},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ],
)
def test_the_rotated_part_has_one_value_under_all_its_names(part):
    model, _ = parse_hf_config(PHI3 | part)
    assert (model.rotary_pct, model.rotary_dim) == (0.5, 8)
    assert parse_hf_config(PHI3)[0].rotary_dim == 16


MUTATIONS = {
    "rope_theta": (5e5, {"rotary_base"}),
    "rms_norm_eps": (1e-6, {"norm_epsilon"}),
    "partial_rotary_factor": (0.5, {"rotary_pct"}),
    "max_position_embeddings": (64, {"max_position_embeddings"}),
    "sliding_window": (16, {"sliding_window"}),
}


@pytest.mark.parametrize("key", MUTATIONS)
def test_no_semantic_field_is_dropped(phi3, key):
    value, changed = MUTATIONS[key]
    before, after = convert_model(phi3("before")), convert_model(phi3("after", **{key: value}))
    assert changed_keys(before.config, after.config) == changed
