"""Mixtral: every expert in its place, and the router as the engine wants it."""

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
    model_writer,
    parameters,
)
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.safetensors import read_header
from trtkit.checkpoint.trtllm import verify
from trtkit.errors import ContractError
from trtkit.plan.hf_config import parse_hf_config

MIXTRAL_8X7B = COMMON | {
    "architectures": ["MixtralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
MIXTRAL_8X22B = MIXTRAL_8X7B | {
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "max_position_embeddings": 65536,
    "num_attention_heads": 48,
    "num_hidden_layers": 56,
    "router_jitter_noise": 0.0,
}
MIXTRAL = TINY | {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
MOE = "block_sparse_moe."
FC, PROJ, ROUTER = (f"transformer.layers.1.mlp.{name}.weight" for name in ("fc", "proj", "router"))


def shapes(config):
    hidden, width, experts = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    mlp = {MOE + "gate.weight": (experts, hidden)}
    for expert in range(experts):
        mlp |= gated_shapes(f"{MOE}experts.{expert}.", hidden, width, ("w1", "w3", "w2"))
    return decoder_shapes(config, mlp)


@pytest.fixture
def mixtral(tmp_path):
    """Write a tiny model."""
    return model_writer(tmp_path, MIXTRAL, shapes)


@pytest.mark.parametrize(
    ("config", "count"), [(MIXTRAL_8X7B, 46_702_792_704), (MIXTRAL_8X22B, 140_620_634_112)], ids=["7b", "22b"]
)
def test_published_models_are_read_to_the_last_weight(config, count):
    assert parse_hf_config(config)[1] == []
    assert parameters(config) == count


def test_both_generations_of_transformers_mean_the_same():
    new = {key: value for key, value in MIXTRAL.items() if key not in ("rope_theta", "torch_dtype")}
    new |= {
        "dtype": "bfloat16",
        "head_dim": None,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    assert parse_hf_config(new) == parse_hf_config(MIXTRAL)


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts_per_tok", "num_key_value_heads"])
def test_what_transformers_would_guess_is_required(key):
    assert keys_of_errors({k: v for k, v in MIXTRAL.items() if k != key}) == [key]
    assert keys_of_errors(MIXTRAL | {key: None}) == [key]


def test_other_absent_keys_mean_what_transformers_takes_them_for():
    given = {k: v for k, v in MIXTRAL.items() if k not in ("rope_theta", "sliding_window")}
    config, warnings = parse_hf_config(given)
    assert (config.rotary_base, config.sliding_window, warnings) == (1_000_000.0, None, [])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_experts": 8}, "num_experts"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"num_local_experts": 0}, "num_local_experts"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"n_shared_experts": 1}, "n_shared_experts"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64}, "layer_types"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_its_key(changes, key):
    assert key in keys_of_errors(MIXTRAL | changes)


MUTATIONS = {
    "num_experts_per_tok": (1, {"moe"}),
    "rms_norm_eps": (1e-6, {"norm_epsilon"}),
    "rope_theta": (5e5, {"rotary_base"}),
    "rope_scaling": ({"type": "linear", "factor": 2.0}, {"rotary_scaling"}),
    "max_position_embeddings": (64, {"max_position_embeddings"}),
    "sliding_window": (32, {"sliding_window"}),
    "head_dim": (32, {"head_size"}),
    "num_local_experts": (2, {"moe"}),
    "intermediate_size": (64, {"intermediate_size"}),
}


@pytest.mark.parametrize("key", MUTATIONS)
def test_no_semantic_field_is_dropped(key, mixtral):
    value, changed = MUTATIONS[key]
    before = convert_model(mixtral("before")).config
    after = convert_model(mixtral("after", **{key: value})).config
    assert changed_keys(before, after) == changed


def test_the_config_names_what_every_loader_takes(mixtral):
    config = convert_model(mixtral()).config
    assert config["moe"] == {"num_experts": 4, "top_k": 2, "normalization_mode": 1}
    assert config["hidden_act"] == "swiglu"
    assert config["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1}


def test_every_expert_has_its_up_rows_before_its_gate_rows(mixtral):
    folder = mixtral()
    checkpoint, source = convert_model(folder), read_header(folder / "model.safetensors")
    for expert in range(4):
        w1, w2, w3 = (source[f"model.layers.1.{MOE}experts.{expert}.w{i}.weight"].read() for i in (1, 2, 3))
        np.testing.assert_array_equal(checkpoint.tensor(FC)[expert], np.concatenate([w3, w1]))
        np.testing.assert_array_equal(checkpoint.tensor(PROJ)[expert], w2)


@pytest.mark.parametrize("rank", range(4))
def test_groups_of_experts_divide_each_expert_among_their_ranks(mixtral, rank):
    folder = mixtral()
    whole = convert_model(folder)
    fc, proj, router = (np.array(whole.tensor(name)) for name in (FC, PROJ, ROUTER))
    divided = convert_model(folder, Parallelism(tp=4, moe_ep=2))
    experts, part = slice(rank % 2 * 2, rank % 2 * 2 + 2), rank // 2
    up, gate = np.split(fc[experts], 2, axis=1)
    mine = [half[:, part * 48 : part * 48 + 48] for half in (up, gate)]
    np.testing.assert_array_equal(divided.tensor(FC, rank), np.concatenate(mine, axis=1))
    np.testing.assert_array_equal(divided.tensor(PROJ, rank), proj[experts, :, part * 48 : part * 48 + 48])
    np.testing.assert_array_equal(divided.tensor(ROUTER, rank), router)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (Parallelism(tp=3), "4 query heads and 2 KV heads cannot be shared by 3 ranks"),
        (Parallelism(tp=8), "cannot be shared by 8 ranks"),
        (Parallelism(tp=4, moe_ep=3), "4 ranks cannot form 3 groups"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(mixtral, ranks, message):
    with pytest.raises(ContractError, match=message):
        convert_model(mixtral(), ranks)


def test_a_router_stays_float32_and_plain_whatever_the_weights_become(mixtral):
    folder = mixtral(intermediate_size=128, num_key_value_heads=4)
    plain = convert_model(folder)
    assert plain.info(ROUTER).dtype == "float32"
    kept = {path.name: path.read_bytes() for path in plain.folder.glob("*.safetensors")}
    quantized = convert_model(folder, weights="int8-wo")
    assert {path.name: path.read_bytes() for path in quantized.folder.glob("*.safetensors")} == kept
    assert quantized.config["quantization"]["quant_algo"] == "W8A16"


@pytest.mark.parametrize(("moe_ep", "fits"), [(1, False), (2, True)])
def test_weight_only_sides_follow_the_ranks_that_share_an_expert(mixtral, moe_ep, fits):
    """Widths of 64 are whole on each of two ranks with experts of their own, and halved otherwise."""
    folder = mixtral(hidden_size=128, intermediate_size=64, num_key_value_heads=4)
    ranks = Parallelism(tp=2, moe_ep=moe_ep)
    if fits:
        convert_model(folder, ranks, "int8-wo")
        return
    with pytest.raises(
        ContractError, match=r"mlp\.proj\.weight: int8-wo needs both sides to be multiples of 128"
    ):
        convert_model(folder, ranks, "int8-wo")


def test_experts_that_are_missing_or_too_many_are_named(mixtral):
    w2 = f"model.layers.1.{MOE}experts.3.w2.weight"
    extra = f"model.layers.0.{MOE}experts.4.w1.weight"

    def edit(tensors):
        del tensors[w2]
        tensors[extra] = (96, 64)

    with pytest.raises(ContractError) as caught:
        convert_model(mixtral(edit=edit))
    assert {(problem.key, problem.message) for problem in caught.value.problems} == {
        (w2, "the tensor is missing"),
        (extra, "nothing in the architecture uses this tensor"),
    }


def test_a_router_of_another_type_does_not_verify(mixtral, save_tensors):
    checkpoint = convert_model(mixtral())
    tensors = {name: np.array(checkpoint.tensor(name)) for name in checkpoint.names}
    tensors[ROUTER] = tensors[ROUTER].astype(np.float16)
    save_tensors(checkpoint.folder / "rank0.safetensors", tensors)
    (problem,) = verify(checkpoint.folder)
    assert (problem.key, problem.message) == (ROUTER, "data type is float16, config.json says float32")
