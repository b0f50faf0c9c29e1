"""GPT-NeoX and Pythia: Q, K and V head by head, and a good deal that the engine takes for granted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.checkpoint.family import (
    COMMON,
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

PYTHIA_160M = COMMON | {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
NEOX_20B = PYTHIA_160M | {
    "attention_probs_dropout_prob": 0,
    "hidden_act": "gelu_fast",
    "hidden_dropout_prob": 0,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "vocab_size": 50432,
}
NEOX = PYTHIA_160M | {
    "hidden_size": 64,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 260,
}


def shapes(config):
    hidden = config["hidden_size"]
    matrices = {
        "attention.query_key_value": (3 * hidden, hidden),
        "attention.dense": (hidden, hidden),
        "mlp.dense_h_to_4h": (4 * hidden, hidden),
        "mlp.dense_4h_to_h": (hidden, 4 * hidden),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    found = dict.fromkeys(("gpt_neox.embed_in.weight", "embed_out.weight"), (config["vocab_size"], hidden))
    for index in range(config["num_hidden_layers"]):
        for name, shape in matrices.items():
            here = f"gpt_neox.layers.{index}.{name}"
            found |= {f"{here}.weight": shape, f"{here}.bias": shape[:1]}
    return found | {f"gpt_neox.final_layer_norm.{part}": (hidden,) for part in ("weight", "bias")}


@pytest.fixture
def neox(tmp_path):
    """Write a tiny model."""
    return model_writer(tmp_path, NEOX, shapes)


@pytest.mark.parametrize(
    ("config", "count", "warned"),
    [(PYTHIA_160M, 162_322_944, ["hidden_act"]), (NEOX_20B, 20_554_567_680, [])],
    ids=["pythia", "20b"],
)
def test_published_models_are_read_to_the_last_weight(config, count, warned):
    """Pythia's GELU is exact, the engine's is not."""
    assert [problem.key for problem in parse_hf_config(config)[1]] == warned
    assert parameters(config) == count


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_heads_become_all_queries_then_keys_then_values(neox, tp):
    folder = neox()
    source = read_header(folder / "model.safetensors")
    checkpoint = convert_model(folder, Parallelism(tp=tp))
    for part in ("weight", "bias"):
        fused = source[f"gpt_neox.layers.1.attention.query_key_value.{part}"].read()
        by_head = fused.reshape(4, 3, 16, *fused.shape[1:]).swapaxes(0, 1)
        for rank in range(tp):
            mine = by_head[:, rank * 4 // tp : (rank + 1) * 4 // tp]
            qkv = checkpoint.tensor(f"transformer.layers.1.attention.qkv.{part}", rank)
            np.testing.assert_array_equal(qkv, mine.reshape(-1, *fused.shape[1:]))


def test_tables_that_old_versions_saved_are_known(neox):
    def tables(tensors):
        here = "gpt_neox.layers.0.attention."
        tensors |= {here + "bias": (1, 1, 128, 128), here + "masked_bias": (1,)}
        tensors |= {here + "rotary_emb.inv_freq": (2,)}

    assert convert_model(neox("with", tables)).names == convert_model(neox("without")).names


def test_no_bias_can_be_missing(neox):
    lost = "gpt_neox.layers.0.attention.dense.bias"
    with pytest.raises(ContractError, match=rf"{lost}: the tensor is missing"):
        convert_model(neox(edit=lambda tensors: tensors.pop(lost)))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"use_parallel_residual": False}, "use_parallel_residual"),
        ({"attention_bias": False}, "attention_bias"),
        ({"layer_norm_eps": 1e-3}, "layer_norm_eps"),
        ({"intermediate_size": 128}, "intermediate_size"),
        ({"head_dim": 32}, "head_dim"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rotary_dim": 8}, "rotary_dim"),
        ({"rotary_ndims": 8}, "rotary_ndims"),
        ({"rotary_pct": 0.2}, "rotary_pct"),
        ({"rotary_pct": 0}, "rotary_pct"),
        ({"rope_theta": 5e5}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.rope_type"),
        (
            {
                "rotary_pct": None,
                "rope_parameters": {"partial_rotary_factor": 0.5},
                "rope_scaling": {"rope_type": "default"},
            },
            "rope_scaling",
        ),
        ({"alibi": True}, "alibi"),
    ],
)
def test_what_the_engine_cannot_honour_is_refused_by_its_key(changes, key):
    assert keys_of_errors(NEOX | changes) == [key]


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_norm_eps": None, "use_parallel_residual": None, "intermediate_size": None},
        {"rotary_pct": None},
        {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rotary_dim": 4},
        {"attention_bias": True, "classifier_dropout": 0.1, "hidden_dropout": 0.0},
    ],
)
def test_absent_values_are_those_of_transformers(changes):
    assert parse_hf_config(NEOX | changes) == parse_hf_config(NEOX)


MUTATIONS = {
    "rotary_pct": (0.5, {"rotary_pct"}),
    "rotary_emb_base": (5e5, {"rotary_base", "rotary_emb_base"}),
    "hidden_act": ("relu", {"hidden_act"}),
    "num_attention_heads": (8, {"num_attention_heads", "num_key_value_heads", "head_size"}),
}


@pytest.mark.parametrize("key", MUTATIONS)
def test_no_semantic_field_is_dropped(neox, key):
    value, changed = MUTATIONS[key]
    before, after = convert_model(neox("before")), convert_model(neox("after", **{key: value}))
    assert changed_keys(before.config, after.config) == changed
