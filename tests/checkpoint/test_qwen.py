"""Qwen 1.5 to 3, dense and with experts: biases, windows that are off, norms of heads, shares of experts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.checkpoint.family import (
    changed_keys,
    convert_model,
    keys_of_errors,
    model_writer,
    parameters,
)
from tests.checkpoint.qwen import (
    EXPERTS,
    FAMILIES,
    QWEN2_7B,
    QWEN2_HALF_B,
    QWEN3_8B,
    QWEN3_30B_A3B,
    QWEN3_MOE,
    QWEN15_MOE,
    shapes,
)
from trtkit.catalog.architectures.qwen2_moe import MOE_WIDTHS
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.safetensors import read_header
from trtkit.checkpoint.trtllm import verify
from trtkit.errors import ContractError, Severity
from trtkit.plan.hf_config import parse_hf_config

QKV_BIAS = "transformer.layers.1.attention.qkv.bias"


@pytest.fixture
def qwen(tmp_path):
    """Write a tiny model of a family."""
    return lambda family, *name, **changes: model_writer(tmp_path, FAMILIES[family], shapes)(*name, **changes)


@pytest.mark.parametrize(
    ("config", "count", "warned"),
    [
        (QWEN2_7B, 7_615_616_512, []),
        (QWEN2_HALF_B, 494_032_768, []),
        (QWEN15_MOE, 14_315_784_192, []),
        (QWEN3_8B, 8_190_735_360, []),
        (QWEN3_30B_A3B, 30_532_122_624, ["norm_topk_prob"]),
    ],
    ids=["2-7b", "2-0.5b", "1.5-moe", "3-8b", "3-30b-a3b"],
)
def test_published_models_are_read_to_the_last_weight(config, count, warned):
    assert [problem.key for problem in parse_hf_config(config)[1]] == warned
    assert parameters(config) == count


NEW_KEYS = {
    "qwen2": {"layer_types": ["full_attention"] * 2, "sliding_window": None},
    "qwen2_moe": {"qkv_bias": True, "sliding_window": 0, "use_sliding_window": False, "mlp_only_layers": []},
    "qwen3": {"attention_bias": False, "layer_types": ["full_attention"] * 2, "sliding_window": None},
    "qwen3_moe": {"num_local_experts": 4, "num_experts": None, "attention_bias": False},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_both_generations_of_transformers_mean_the_same(family):
    old = FAMILIES[family]
    new = {key: value for key, value in old.items() if key not in ("rope_theta", "torch_dtype")}
    new |= {"dtype": "bfloat16", "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    assert parse_hf_config(new | NEW_KEYS[family]) == parse_hf_config(old)


REQUIRED = [
    *((family, "num_key_value_heads") for family in FAMILIES),
    ("qwen3", "head_dim"),
    *(("qwen2_moe", key) for key in (*EXPERTS, "shared_expert_intermediate_size")),
    *(("qwen3_moe", key) for key in EXPERTS),
]


@pytest.mark.parametrize(("family", "key"), REQUIRED)
def test_what_transformers_would_guess_is_required(family, key):
    config = FAMILIES[family]
    assert keys_of_errors({k: v for k, v in config.items() if k != key}) == [key]
    assert keys_of_errors(config | {key: None}) == [key]


@pytest.mark.parametrize("family", FAMILIES)
def test_other_absent_keys_mean_what_transformers_takes_them_for(family):
    left_out = ("rope_theta", "tie_word_embeddings", "hidden_act")
    given = {key: value for key, value in FAMILIES[family].items() if key not in left_out}
    assert parse_hf_config(given) == parse_hf_config(FAMILIES[family])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("use", [{}, {"use_sliding_window": None}, {"use_sliding_window": False}])
def test_a_window_is_off_unless_it_is_asked_for(family, use):
    assert parse_hf_config(FAMILIES[family] | use | {"sliding_window": 32}) == parse_hf_config(
        FAMILIES[family]
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("window", [{"sliding_window": 32}, {"max_position_embeddings": 8192}])
def test_a_window_that_is_on_is_refused(family, window):
    """Only layers after ``max_window_layers`` would have it; 4096 tokens is what no number means."""
    assert keys_of_errors(FAMILIES[family] | {"use_sliding_window": True} | window) == ["sliding_window"]


REFUSED = [
    ("qwen2", {"use_mrope": True}, "use_mrope"),
    ("qwen2", {"use_logn_attn": True}, "use_logn_attn"),
    ("qwen2", {"mlp_bias": True}, "mlp_bias"),
    ("qwen2", {"num_experts": 4}, "num_experts"),
    ("qwen2", {"attention_bias": True, "qkv_bias": False}, "qkv_bias"),
    ("qwen2", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, "rope_scaling.rope_type"),
    (
        "qwen2",
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        "rope_scaling.original_max_position_embeddings",
    ),
    ("qwen2_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
    ("qwen2_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
    ("qwen2_moe", {"num_experts_per_tok": 5}, "num_experts_per_tok"),
    ("qwen2_moe", {"norm_topk_prob": "yes"}, "norm_topk_prob"),
    ("qwen3", {"attention_bias": True}, "attention_bias"),
    ("qwen3", {"attention_bias": "no"}, "attention_bias"),
    ("qwen3_moe", {"num_local_experts": 8}, "num_local_experts"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
]


@pytest.mark.parametrize(("family", "changes", "key"), REFUSED)
def test_what_the_engine_cannot_do_is_refused_by_its_key(family, changes, key):
    assert keys_of_errors(FAMILIES[family] | changes) == [key]


MUTATIONS = [
    *((family, "rms_norm_eps", 1e-6, {"norm_epsilon"}) for family in FAMILIES),
    *((family, "rope_theta", 5e5, {"rotary_base"}) for family in FAMILIES),
    *((family, "tie_word_embeddings", True, {"tie_word_embeddings"}) for family in FAMILIES),
    ("qwen2", "rope_scaling", {"type": "linear", "factor": 2.0}, {"rotary_scaling"}),
    ("qwen2", "max_position_embeddings", 64, {"max_position_embeddings"}),
    ("qwen2", "head_dim", 32, {"head_size"}),
    ("qwen2_moe", "norm_topk_prob", True, {"moe"}),
    ("qwen2_moe", "num_experts_per_tok", 1, {"moe"}),
    ("qwen2_moe", "moe_intermediate_size", 32, {"moe_intermediate_size"}),
    (
        "qwen2_moe",
        "shared_expert_intermediate_size",
        64,
        {"moe", "moe_shared_expert_intermediate_size"},
    ),
    ("qwen2_moe", "qkv_bias", False, {"attn_bias"}),
    ("qwen3", "head_dim", 16, {"head_size"}),
    ("qwen3_moe", "norm_topk_prob", True, {"moe"}),
]


@pytest.mark.parametrize(("family", "key", "value", "changed"), MUTATIONS)
def test_no_semantic_field_is_dropped(family, key, value, changed, qwen):
    before = convert_model(qwen(family, "before")).config
    after = convert_model(qwen(family, "after", **{key: value})).config
    assert changed_keys(before, after) == changed


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_names_what_the_loader_has_no_default_for(family, qwen):
    config = convert_model(qwen(family)).config
    assert (config["qwen_type"], config["seq_length"]) == (family, 8192)
    assert config["attn_bias"] == (family in ("qwen2", "qwen2_moe"))
    widths = [config.get(f"moe_{name}intermediate_size") for name in ("", "shared_expert_")]
    assert widths == {"qwen2_moe": [48, 80], "qwen3_moe": [48, 0]}.get(family, [None, None])
    assert config["hidden_act"] == ("swiglu" if "moe" in family else "silu")
    assert ("moe" in config) == ("moe" in family)


def test_shares_of_chosen_experts_sum_to_one_where_the_model_was_trained_so(qwen):
    folder = qwen("qwen3_moe", norm_topk_prob=True)
    assert convert_model(folder).config["moe"]["normalization_mode"] == 1
    (warning,) = parse_hf_config(QWEN3_MOE | {"norm_topk_prob": True})[1]
    assert (warning.key, warning.severity) == ("norm_topk_prob", Severity.WARNING)
    assert "own converter writes NONE" in warning.message


def test_a_shared_expert_is_fused_and_its_gate_is_not(qwen):
    folder = qwen("qwen2_moe")
    checkpoint, source = convert_model(folder), read_header(folder / "model.safetensors")
    here = "model.layers.1.mlp.shared_expert"
    up, gate = (source[f"{here}.{name}_proj.weight"].read() for name in ("up", "gate"))
    target = "transformer.layers.1.mlp.shared_expert"
    np.testing.assert_array_equal(checkpoint.tensor(f"{target}.fc.weight"), np.concatenate([up, gate]))
    np.testing.assert_array_equal(
        checkpoint.tensor(f"{target}_gate.weight"), source[f"{here}_gate.weight"].read()
    )


def test_norms_of_heads_are_whole_on_every_rank(qwen):
    folder = qwen("qwen3")
    source = read_header(folder / "model.safetensors")
    checkpoint = convert_model(folder, Parallelism(tp=2))
    for rank in range(2):
        for side in "qk":
            norm = checkpoint.tensor(f"transformer.layers.1.attention.{side}_layernorm.weight", rank)
            np.testing.assert_array_equal(norm, source[f"model.layers.1.self_attn.{side}_norm.weight"].read())


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_hold_the_biases_of_their_heads(qwen, tp):
    folder = qwen("qwen2")
    checkpoint, source = convert_model(folder, Parallelism(tp=tp)), read_header(folder / "model.safetensors")
    q, k, v = (source[f"model.layers.1.self_attn.{side}_proj.bias"].read().reshape(-1, 16) for side in "qkv")
    for rank in range(tp):
        queries = range(rank * 4 // tp, (rank + 1) * 4 // tp)
        keys = sorted({query // 2 for query in queries})
        mine = np.concatenate([q[list(queries)], k[keys], v[keys]])
        np.testing.assert_array_equal(checkpoint.tensor(QKV_BIAS, rank), mine.ravel())
    assert "transformer.layers.1.attention.dense.bias" not in checkpoint


@pytest.mark.parametrize(("tp", "message"), [(3, "shared by 3 ranks"), (8, "shared by 8 ranks")])
def test_heads_that_do_not_divide_are_refused(qwen, tp, message):
    with pytest.raises(ContractError, match=message):
        convert_model(qwen("qwen2"), Parallelism(tp=tp))


def drop_biases(tensors):
    for name in [name for name in tensors if name.endswith(".bias")]:
        del tensors[name]


LAYER = "model.layers.1."
MISFITS = [
    ("qwen2", "self_attn.q_proj.bias", None),
    ("qwen2", "self_attn.o_proj.bias", (64,)),
    ("qwen2", "mlp.up_proj.bias", (96,)),
    ("qwen3", "self_attn.q_proj.bias", (128,)),
    ("qwen3", "self_attn.k_norm.weight", None),
    ("qwen3", "self_attn.k_norm.weight", (16,)),
    ("qwen2_moe", "mlp.shared_expert_gate.weight", (2, 64)),
    ("qwen3_moe", "mlp.shared_expert_gate.weight", (1, 64)),
]


@pytest.mark.parametrize(("family", "name", "shape"), MISFITS)
def test_a_tensor_that_does_not_fit_the_class_is_named(qwen, family, name, shape):
    def edit(tensors):
        if shape is None:
            del tensors[LAYER + name]
        else:
            tensors[LAYER + name] = shape

    with pytest.raises(ContractError) as caught:
        convert_model(qwen(family, edit=edit))
    assert [problem.key for problem in caught.value.problems] == [LAYER + name]


def test_a_model_without_the_biases_of_its_class_can_say_so(qwen):
    checkpoint = convert_model(qwen("qwen2", edit=drop_biases, attention_bias=False))
    assert not checkpoint.config["attn_bias"]
    assert QKV_BIAS not in checkpoint


UNSOUND = [
    ("qwen2", "qwen_type", ...),
    ("qwen3", "seq_length", ...),
    *(("qwen2_moe", key, ...) for key in MOE_WIDTHS),
    *(("qwen2_moe", key, value) for key in MOE_WIDTHS for value in ("80", -1, None, True)),
    ("qwen3_moe", "moe", ...),
    *(("qwen3_moe", "moe", moe) for moe in (None, {}, {"num_experts": 0, "top_k": 2}, {"num_experts": 4})),
]


@pytest.mark.parametrize(("family", "key", "value"), UNSOUND)
def test_a_checkpoint_without_what_its_loader_reads_does_not_verify(qwen, family, key, value):
    path = convert_model(qwen(family)).folder / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in ({**content, key: value}).items() if v is not ...}))
    (problem,) = verify(path.parent)
    assert problem.message.startswith(key)


@pytest.mark.parametrize("family", FAMILIES)
def test_weight_only_keeps_plain_weights(qwen, family):
    even = {"intermediate_size": 128, "num_key_value_heads": 4, "head_dim": 16}
    even |= {"moe_intermediate_size": 64} if "moe" in family else {}
    even |= {"shared_expert_intermediate_size": 64} if family == "qwen2_moe" else {}
    folder = qwen(family, **even)
    kept = (convert_model(folder).folder / "rank0.safetensors").read_bytes()
    assert (convert_model(folder, weights="int8-wo").folder / "rank0.safetensors").read_bytes() == kept
