"""GPT-2: matrices the other way round, tables of masks, names without their prefix."""

from __future__ import annotations

import numpy as np
import pytest

from tests.checkpoint.family import (
    COMMON,
    changed_keys,
    convert_model,
    keys_of_errors,
    parameters,
    write_model,
)
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.safetensors import read_header
from trtkit.errors import ContractError
from trtkit.plan.hf_config import parse_hf_config

# As openai-community/gpt2 has it: older than most keys.
PUBLISHED = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
GPT2 = COMMON | {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "eos_token_id": 0,
    "layer_norm_epsilon": 1e-05,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 32,
    "vocab_size": 261,
}


def shapes(config):
    hidden, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
    layer = {
        "attn.c_attn.weight": (hidden, 3 * hidden),
        "attn.c_attn.bias": (3 * hidden,),
        "attn.c_proj.weight": (hidden, hidden),
        "attn.c_proj.bias": (hidden,),
        "mlp.c_fc.weight": (hidden, inner),
        "mlp.c_fc.bias": (inner,),
        "mlp.c_proj.weight": (inner, hidden),
        "mlp.c_proj.bias": (hidden,),
        **{f"{norm}.{part}": (hidden,) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")},
    }
    found = {"wte.weight": (config["vocab_size"], hidden), "wpe.weight": (config["n_positions"], hidden)}
    for index in range(config["n_layer"]):
        found |= {f"h.{index}.{name}": shape for name, shape in layer.items()}
    return found | {"ln_f.weight": (hidden,), "ln_f.bias": (hidden,)}


@pytest.fixture
def gpt2(tmp_path):
    """Write a tiny model; ``edit`` changes its tensors' shapes, other arguments config.json."""

    def write(name="hf", edit=lambda shapes: None, prefix="transformer.", **changes):
        config = GPT2 | changes
        tensors = {prefix + key: shape for key, shape in shapes(config).items()}
        edit(tensors)
        return write_model(tmp_path / name, config, tensors)

    return write


def test_a_published_model_is_read_to_the_last_weight():
    assert [problem.key for problem in parse_hf_config(PUBLISHED)[1]] == ["dtype"]
    assert parameters(PUBLISHED) == 124_439_808
    # gpt2-xl has other sizes and no other keys.
    assert parameters(PUBLISHED | {"n_embd": 1600, "n_head": 25, "n_layer": 48}) == 1_557_611_200


@pytest.mark.parametrize("tp", [1, 2])
def test_matrices_are_turned_round_before_they_are_divided(gpt2, tp):
    folder = gpt2()
    source = {name: info.read() for name, info in read_header(folder / "model.safetensors").items()}
    checkpoint = convert_model(folder, Parallelism(tp=tp))
    for rank in range(tp):
        here = "transformer.layers.1."
        for part in ("weight", "bias"):
            fused = source[f"transformer.h.1.attn.c_attn.{part}"].T
            heads = [np.split(side, tp)[rank] for side in np.split(fused, 3)]
            qkv = checkpoint.tensor(f"{here}attention.qkv.{part}", rank)
            np.testing.assert_array_equal(qkv, np.concatenate(heads))
        proj = np.split(source["transformer.h.1.mlp.c_proj.weight"].T, tp, axis=1)[rank]
        np.testing.assert_array_equal(checkpoint.tensor(here + "mlp.proj.weight", rank), proj)
        bias = source["transformer.h.1.mlp.c_proj.bias"]
        np.testing.assert_array_equal(checkpoint.tensor(here + "mlp.proj.bias", rank), bias)


def test_names_without_prefix_and_tables_of_masks_are_known(gpt2):
    def masks(tensors):
        tensors |= {"h.0.attn.bias": (1, 1, 32, 32), "h.1.attn.masked_bias": (1,)}

    # Random weights come in the order of the tensors.
    bare, prefixed = convert_model(gpt2("bare", masks, prefix="")), convert_model(gpt2("prefixed"))
    assert bare.names == prefixed.names
    for name in bare.names:
        np.testing.assert_array_equal(bare.tensor(name), prefixed.tensor(name))


@pytest.mark.parametrize("lost", ["attn.c_attn.bias", "mlp.c_proj.bias", "ln_1.bias"])
def test_no_bias_can_be_missing(gpt2, lost):
    with pytest.raises(ContractError, match=rf"{lost}: the tensor is missing"):
        convert_model(gpt2(edit=lambda tensors: tensors.pop(f"transformer.h.0.{lost}")))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"scale_attn_weights": False}, "scale_attn_weights"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"activation_function": "quick_gelu"}, "activation_function"),
        ({"n_ctx": 64}, "n_ctx"),
        ({"hidden_size": 32}, "hidden_size"),
        ({"head_dim": 32}, "head_dim"),
        ({"intermediate_size": 96}, "intermediate_size"),
        ({"n_embd": None}, "n_embd"),
        ({"n_positions": None}, "n_positions"),
        ({"n_inner": -1}, "n_inner"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling.rope_type"),
    ],
)
def test_what_the_engine_cannot_honour_is_refused_by_its_key(changes, key):
    assert keys_of_errors(GPT2 | changes) == [key]


def test_gelu_by_the_error_function_is_warned_of():
    _, warnings = parse_hf_config(GPT2 | {"activation_function": "gelu"})
    assert [warning.key for warning in warnings] == ["activation_function"]


MUTATIONS = {
    "layer_norm_epsilon": (1e-6, {"norm_epsilon"}),
    "activation_function": ("relu", {"hidden_act"}),
    "n_inner": (128, {"intermediate_size"}),
    "n_head": (2, {"num_attention_heads", "num_key_value_heads", "head_size"}),
    "n_positions": (16, {"max_position_embeddings"}),
}


@pytest.mark.parametrize("key", MUTATIONS)
def test_no_semantic_field_is_dropped(gpt2, key):
    value, changed = MUTATIONS[key]
    before, after = convert_model(gpt2("before")), convert_model(gpt2("after", **{key: value}))
    assert changed_keys(before.config, after.config) == changed
