"""Falcon: four kinds of layers under one class name, told apart by flags."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.checkpoint.family import (
    COMMON,
    changed_keys,
    convert_model,
    keys_of_errors,
    model_writer,
    parameters,
    write_model,
)
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.safetensors import read_header
from trtkit.errors import ContractError
from trtkit.plan.hf_config import parse_hf_config

FALCON_7B = COMMON | {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"},
    "bias": False,
    "bos_token_id": 11,
    "eos_token_id": 11,
    "hidden_dropout": 0.0,
    "hidden_size": 4544,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "vocab_size": 65024,
}
FALCON_40B = FALCON_7B | {
    "hidden_size": 8192,
    "new_decoder_architecture": True,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
}
FALCON_11B = FALCON_7B | {
    "activation": "gelu",
    "ff_factor": 4,
    "ffn_hidden_size": 16384,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
    "new_decoder_architecture": True,
    "num_attention_heads": 32,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
    "num_ln_in_parallel_attn": 1,
    "rope_scaling": None,
    "rope_theta": 500042.0,
    "tie_word_embeddings": False,
}
FALCON_RW_1B = FALCON_7B | {
    "alibi": True,
    "bias": True,
    "hidden_size": 2048,
    "multi_query": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 24,
    "parallel_attn": False,
    "vocab_size": 50304,
}
SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 260,
    "max_position_embeddings": 128,
    "ffn_hidden_size": None,
}
KINDS = {
    "7b": FALCON_7B | SMALL,
    "40b": FALCON_40B | SMALL | {"num_kv_heads": 2},
    "11b": FALCON_11B | SMALL | {"num_kv_heads": 2},
    "rw": FALCON_RW_1B | SMALL,
}
NORMS = {
    "7b": ["input_layernorm"],
    "40b": ["ln_attn", "ln_mlp"],
    "11b": ["input_layernorm"],
    "rw": ["input_layernorm", "post_attention_layernorm"],
}
KV_HEADS = {"7b": 1, "40b": 2, "11b": 2, "rw": 4}


def shapes(kind, config):
    hidden, inner = config["hidden_size"], config.get("ffn_hidden_size") or 4 * config["hidden_size"]
    rows = hidden + 2 * KV_HEADS[kind] * (hidden // config["num_attention_heads"])
    matrices = {
        "self_attention.query_key_value": (rows, hidden),
        "self_attention.dense": (hidden, hidden),
        "mlp.dense_h_to_4h": (inner, hidden),
        "mlp.dense_4h_to_h": (hidden, inner),
    }
    found = {"transformer.word_embeddings.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        here = f"transformer.h.{index}."
        for name, shape in matrices.items():
            found[f"{here}{name}.weight"] = shape
            if config["bias"]:
                found[f"{here}{name}.bias"] = shape[:1]
        found |= {f"{here}{norm}.{part}": (hidden,) for norm in NORMS[kind] for part in ("weight", "bias")}
    found |= {f"transformer.ln_f.{part}": (hidden,) for part in ("weight", "bias")}
    tied = config.get("tie_word_embeddings", True)
    return found if tied else found | {"lm_head.weight": (config["vocab_size"], hidden)}


@pytest.fixture
def falcon(tmp_path):
    """Write a tiny model of a kind."""

    def write(kind, *name, **changes):
        return model_writer(tmp_path, KINDS[kind], partial(shapes, kind))(*name, **changes)

    return write


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (FALCON_7B, 6_921_720_704),
        (FALCON_40B, 41_303_293_952),
        (FALCON_11B, 11_102_822_400),
        (FALCON_RW_1B, 1_311_625_216),
    ],
    ids=KINDS,
)
def test_published_models_are_read_to_the_last_weight(config, count):
    """Falcon's GELU is exact, the engine's is not."""
    warnings = parse_hf_config(config)[1]
    assert [problem.key for problem in warnings] == ["activation"]
    assert parameters(config) == count


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_become_all_queries_then_keys_then_values(falcon, kind, tp):
    folder, groups = falcon(kind), KV_HEADS[kind]
    source = read_header(folder / "model.safetensors")
    checkpoint = convert_model(folder, Parallelism(tp=tp))
    fused = source["transformer.h.1.self_attention.query_key_value.weight"].read()
    by_group = fused.reshape(groups, -1, 16, 64)
    q, k, v = (
        by_group[:, :-2].reshape(-1, 64),
        by_group[:, -2].reshape(-1, 64),
        by_group[:, -1].reshape(-1, 64),
    )
    for rank in range(tp):
        parts = min(tp, groups)
        mine = [np.split(q, tp)[rank], *(np.split(side, parts)[rank * parts // tp] for side in (k, v))]
        qkv = checkpoint.tensor("transformer.layers.1.attention.qkv.weight", rank)
        np.testing.assert_array_equal(qkv, np.concatenate(mine))


@pytest.mark.parametrize(
    ("kind", "norms", "flags"),
    [
        ("7b", ["input_layernorm"], [False, True, 1, "rope_gpt_neox", False]),
        ("40b", ["input_layernorm", "mlp_layernorm"], [True, True, 2, "rope_gpt_neox", False]),
        ("11b", ["input_layernorm"], [True, True, 1, "rope_gpt_neox", False]),
        ("rw", ["input_layernorm", "post_layernorm"], [False, False, 1, "alibi_with_scale", True]),
    ],
)
def test_each_kind_has_its_norms_and_says_what_it_is(falcon, kind, norms, flags):
    checkpoint = convert_model(falcon(kind))
    found = [name.split(".")[3] for name in checkpoint.names if "layers.0" in name and "norm.weight" in name]
    assert sorted(found) == norms
    keys = (
        "new_decoder_architecture",
        "parallel_attention",
        "num_ln_in_parallel_attn",
        "position_embedding_type",
        "bias",
    )
    assert [checkpoint.config[key] for key in keys] == flags


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("7b", {"num_kv_heads": 4}),  # as transformers 5 saves it
        ("7b", {"num_kv_heads": 1}),
        ("7b", {"alibi": None, "bias": None, "multi_query": None, "parallel_attn": None}),
        ("7b", {"new_decoder_architecture": None, "rope_theta": 10000.0, "tie_word_embeddings": True}),
        ("40b", {"num_ln_in_parallel_attn": 2}),
        ("40b", {"multi_query": False}),
        ("rw", {"num_kv_heads": 4}),
    ],
)
def test_values_that_a_kind_does_not_go_by_change_nothing(kind, changes):
    assert parse_hf_config(KINDS[kind] | changes) == parse_hf_config(KINDS[kind])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("7b", {"num_kv_heads": 2}),
        ("7b", {"multi_query": False}),
        ("7b", {"num_ln_in_parallel_attn": 2}),
        ("7b", {"parallel_attn": False}),
        ("7b", {"bias": True}),
        ("7b", {"ffn_hidden_size": 128}),
        ("7b", {"tie_word_embeddings": False}),
        ("40b", {"num_ln_in_parallel_attn": 1}),
        ("40b", {"num_ln_in_parallel_attn": 3}),
        ("40b", {"new_decoder_architecture": False}),
        ("40b", {"parallel_attn": False}),
        ("rw", {"bias": False}),
    ],
)
def test_flags_of_another_kind_are_refused_by_the_weights(falcon, tmp_path, kind, changes):
    folder = write_model(tmp_path / "hf", KINDS[kind] | changes, shapes(kind, KINDS[kind]))
    with pytest.raises(ContractError):
        convert_model(folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_the_fix_for_biases_names_the_familys_own_key(tmp_path):
    folder = write_model(tmp_path / "hf", KINDS["7b"] | {"bias": True}, shapes("7b", KINDS["7b"]))
    with pytest.raises(ContractError, match=r"bias: the tensor is missing .*\n.*fix: bias is true"):
        convert_model(folder)


def test_all_matrices_have_a_bias_or_none_has(falcon):
    def lose(tensors):
        for layer in range(2):
            del tensors[f"transformer.h.{layer}.mlp.dense_4h_to_h.bias"]

    with pytest.raises(ContractError, match=r"but not mlp\.dense_4h_to_h\.bias: a FalconForCausalLM has all"):
        convert_model(falcon("rw", edit=lose))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon"),
        ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ({"head_dim": 32}, "head_dim"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"alibi": "yes"}, "alibi"),
        ({"multi_query": "yes"}, "multi_query"),
        ({"activation": "silu"}, "activation"),
        ({"num_ln_in_parallel_attn": 0}, "num_ln_in_parallel_attn"),
        ({"n_embed": 32}, "n_embed"),
        ({"num_attention_heads": None}, "num_attention_heads"),
    ],
)
def test_what_the_engine_cannot_honour_is_refused_by_its_key(changes, key):
    assert keys_of_errors(KINDS["40b"] | changes) == [key]


MUTATIONS = {
    "rope_theta": (5e5, {"rotary_base"}),
    "alibi": (True, {"position_embedding_type"}),
    "activation": ("relu", {"hidden_act"}),
    "bias": (True, {"bias", "attn_bias", "mlp_bias"}),
    "ffn_hidden_size": (128, {"intermediate_size"}),
    "tie_word_embeddings": (False, {"tie_word_embeddings"}),
    "max_position_embeddings": (64, {"max_position_embeddings"}),
}


@pytest.mark.parametrize("key", MUTATIONS)
def test_no_semantic_field_is_dropped(falcon, key):
    value, changed = MUTATIONS[key]
    before, after = (
        convert_model(falcon("7b", "before")),
        convert_model(falcon("7b", "after", **{key: value})),
    )
    assert changed_keys(before.config, after.config) == changed
