"""Exported Hugging Face folders: the checkpoint's numbers under the publisher's names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint import test_mixtral, test_phi3
from tests.checkpoint.exported import export, plainly, read
from tests.checkpoint.family import write_model
from tests.checkpoint.quantized import FP8, quantized, values_of
from trtkit.catalog.architectures.architecture import Arrange
from trtkit.catalog.schemes import SCHEMES
from trtkit.checkpoint.blocks import row_order
from trtkit.checkpoint.forms.taken_over import TakenOver
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export import export_hf
from trtkit.checkpoint.hf_export.folding import norm_scales
from trtkit.checkpoint.hf_export.tensors import source_order, split_part
from trtkit.checkpoint.mapping import map_tensors
from trtkit.errors import InputError

HIDDEN, Q, KV, INNER = 64, 64, 32, 128
JOINED = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "W4A16_AWQ")
MODELOPT = Path(__file__).parents[1] / "golden" / "sources" / "llama_w2_mo_fp8_fp8kv"


@pytest.fixture
def make(tiny_llama, tmp_path):
    """Quantize a tiny model and export it; return the checkpoint and the folder."""

    def run(algorithm, *, edit=lambda tensors: None, kv_cache=None, **changes):
        source = tiny_llama(**changes)
        checkpoint = quantized(source, tmp_path / "trtllm", algorithm, kv_cache=kv_cache, edit=edit)
        export_hf(checkpoint, HfCheckpoint.open(source), tmp_path / "out")
        return checkpoint, tmp_path / "out"

    return run


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_quantized_layers_mean_the_same_on_both_sides(make, algorithm):
    """Weights and scales are read by their documented layouts, with nothing of the exporter's."""
    checkpoint, out = make(algorithm)
    tensors = read(out)
    scale_name = "per_channel_scale" if "PER_CHANNEL" in algorithm else "weights_scaling_factor"
    for layer in range(2):
        for joined, names in JOINED.items():
            ours = f"transformer.layers.{layer}.{joined}."
            theirs = [f"model.layers.{layer}.{name}." for name in names]
            expected = values_of(checkpoint.tensor(ours + "weight"), checkpoint.tensor(ours + scale_name))
            found = [
                values_of(tensors[name + "weight"], tensors[name + "weight_scale"].reshape(-1))
                if algorithm != "W4A16_AWQ"
                else values_of(tensors[name + "weight"], tensors[name + "weight_scale"])
                for name in theirs
            ]
            np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("kv_cache", [None, "FP8"])
def test_fp8_has_the_form_that_modelopt_writes(make, kv_cache):
    checkpoint, out = make("FP8", kv_cache=kv_cache)
    tensors = read(out)
    here = {name.split("layers.1.")[1]: value for name, value in tensors.items() if "layers.1." in name}
    assert here["self_attn.k_proj.weight"].dtype == FP8
    assert here["self_attn.k_proj.weight"].shape == (KV, HIDDEN)
    scales = {name: value for name, value in here.items() if name.endswith("_scale")}
    assert all(value.dtype == np.float32 and value.shape == () for value in scales.values())
    inputs = checkpoint.tensor("transformer.layers.1.attention.qkv.activation_scaling_factor")
    assert {float(here[f"self_attn.{side}_proj.input_scale"]) for side in "qkv"} == {float(inputs[0])}
    caches = {name: float(value) for name, value in here.items() if name.endswith((".k_scale", ".v_scale"))}
    expected = {f"self_attn.{side}_proj.{side}_scale": 1.5 for side in "kv"}
    assert caches == (expected if kv_cache else {})


@pytest.mark.parametrize("kv_cache", [None, "FP8"])
def test_both_descriptions_of_the_quantization_agree(make, kv_cache):
    _, out = make("FP8", kv_cache=kv_cache)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    side = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert side == {"quant_algo": "FP8", "kv_cache_quant_algo": kv_cache, "exclude_modules": ["lm_head"]}
    eight = {"dynamic": False, "num_bits": 8, "type": "float"}
    assert config.pop("producer")["name"] == "trtkit"
    assert config == {
        "config_groups": {"group_0": {"input_activations": eight, "weights": eight, "targets": ["Linear"]}},
        "ignore": ["lm_head"],
        "quant_algo": "FP8",
        "quant_method": "modelopt",
        **({"kv_cache_scheme": eight} if kv_cache else {}),
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_not_quantized_is_the_publishers(make, algorithm):
    _, out = make(algorithm, attention_bias=True, edit=drop_smoothing)
    source, tensors = read(out.parent / "hf"), read(out)
    kept = [name for name in source if not name.endswith("_proj.weight")]
    assert len(kept) > 12
    assert all(tensors[name].tobytes() == source[name].tobytes() for name in kept)


def drop_smoothing(tensors):
    """Leave no activation scale that would change a norm."""
    for name in tensors:
        if name.endswith("prequant_scaling_factor") and name.split(".")[-2] in {"qkv", "fc", "gate"}:
            tensors[name] = np.ones_like(tensors[name])


def test_activation_scales_go_into_the_norm_before_and_stay_where_there_is_none(make):
    checkpoint, out = make("W4A16_AWQ")
    source, tensors = read(out.parent / "hf"), read(out)
    for joined, norm in (("attention.qkv", "input"), ("mlp.fc", "post_attention")):
        name = f"model.layers.1.{norm}_layernorm.weight"
        scale = checkpoint.tensor(f"transformer.layers.1.{joined}.prequant_scaling_factor")
        product = source[name].astype(np.float32) * scale.astype(np.float32)
        assert tensors[name].tobytes() == product.astype(ml_dtypes.bfloat16).tobytes()
    kept = {name for name in tensors if name.startswith("model.layers.1.") and "pre_quant" in name}
    assert kept == {
        f"model.layers.1.{name}.pre_quant_scale" for name in ("self_attn.o_proj", "mlp.down_proj")
    }
    ours = checkpoint.tensor("transformer.layers.1.mlp.proj.prequant_scaling_factor")
    assert tensors["model.layers.1.mlp.down_proj.pre_quant_scale"].tobytes() == ours.tobytes()


def test_layers_behind_one_norm_need_one_activation_scale(make):
    def differ(tensors):
        tensors["transformer.layers.1.mlp.gate.prequant_scaling_factor"][3] *= 2

    with pytest.raises(InputError, match=r"layers that follow .*post_layernorm have different"):
        make("W4A16_AWQ", edit=differ)


def test_a_norm_before_experts_takes_no_scale_since_the_router_reads_it_too(tmp_path):
    config = test_mixtral.MIXTRAL
    source = HfCheckpoint.open(write_model(tmp_path / "hf", config, test_mixtral.shapes(config)))
    checkpoint = plainly(source.folder, tmp_path / "trtllm")
    some_vector = checkpoint.info("transformer.ln_f.weight")
    name = "transformer.layers.0.mlp.fc.prequant_scaling_factor"
    scaled = replace(checkpoint, ranks=({**checkpoint.tensors, name: some_vector},))
    with pytest.raises(InputError, match=r"mlp\.fc\.weight follows no norm"):
        norm_scales(map_tensors(source.config, source.tensors, file=""), scaled)


def test_loaders_find_the_activation_scale_that_a_checkpoint_leaves_out(tiny_llama, tmp_path):
    def drop(tensors):
        for name in [name for name in tensors if "prequant" in name]:
            del tensors[name]

    source = tiny_llama()
    checkpoint = quantized(source, tmp_path / "trtllm", "W4A16_AWQ", edit=drop, pre_quant_scale=False)
    scale = export(checkpoint, source, tmp_path / "out")["model.layers.0.mlp.down_proj.pre_quant_scale"]
    assert scale.shape == (INNER,)
    assert (scale == 1).all()
    side = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert side["pre_quant_scale"] is True
    assert side["group_size"] == 64


@pytest.mark.parametrize(("algorithm", "kv_cache"), [("FP8", None), ("FP8", "FP8"), ("W4A16_AWQ", None)])
def test_importing_an_export_gives_the_checkpoint_again(make, tmp_path, algorithm, kv_cache):
    checkpoint, out = make(algorithm, kv_cache=kv_cache, edit=drop_smoothing)
    again = plainly(out, tmp_path / "again", recipe=TakenOver(HfCheckpoint.open(out).storage))
    assert again.config == checkpoint.config
    assert set(again.names) == set(checkpoint.names)
    for name in checkpoint.names:
        assert again.tensor(name).tobytes() == checkpoint.tensor(name).tobytes(), name


def test_a_modelopt_checkpoint_comes_back_but_for_the_scales_that_joining_merges(tmp_path):
    checkpoint = plainly(MODELOPT, tmp_path / "trtllm", recipe=TakenOver(HfCheckpoint.open(MODELOPT).storage))
    before, after = read(MODELOPT), export(checkpoint, MODELOPT, tmp_path / "out")
    assert {name: (v.dtype, v.shape) for name, v in before.items()} == {
        name: (v.dtype, v.shape) for name, v in after.items()
    }
    changed = {name.split(".", 3)[3] for name in before if before[name].tobytes() != after[name].tobytes()}
    merged = [f"self_attn.{side}_proj" for side in "qkv"]
    merged += [f"mlp.{side}_proj" for side in ("gate", "up")]
    assert changed <= {
        f"{name}.{part}" for name in merged for part in ("weight", "weight_scale", "input_scale")
    }
    config = [json.loads((folder / "config.json").read_text()) for folder in (MODELOPT, tmp_path / "out")]
    for each in config:
        del each["quantization_config"]["producer"]
    assert config[0] == config[1]


@pytest.mark.parametrize(
    ("config", "shapes"),
    [(test_mixtral.MIXTRAL, test_mixtral.shapes), (test_phi3.PHI3, test_phi3.shapes)],
    ids=["experts", "fused"],
)
def test_splitting_undoes_joining(tmp_path, config, shapes):
    source = HfCheckpoint.open(write_model(tmp_path / "hf", config, shapes(config)))
    checkpoint = plainly(source.folder, tmp_path / "trtllm")
    (part,) = SCHEMES[None].parts
    found = {}
    for tensor in map_tensors(source.config, source.tensors, file=""):
        if tensor.target.rule.is_linear:
            info = checkpoint.info(tensor.target.name)
            for piece in split_part(tensor, part, info, source.config, suffix="weight", dtype=None):
                found[piece.spec] = b"".join(block.tobytes() for block in piece.read())
    expected = read(source.folder)
    linear = {
        name for name in expected if expected[name].ndim == 2 and "layers" in name and ".gate." not in name
    }
    assert {spec.name for spec in found} == linear
    for spec, content in found.items():
        assert spec.shape == expected[spec.name].shape
        assert content == expected[spec.name].astype(spec.dtype).tobytes()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.sampled_from(Arrange))
def test_the_order_of_the_source_is_the_inverse_of_the_order_of_the_target(
    smollm2, kv, queries, size, arrange
):
    config = replace(smollm2, num_heads=kv * queries, num_kv_heads=kv, head_size=2 * size)
    rows = np.arange((queries + 2) * kv * 2 * size)
    joined = np.concatenate(
        [rows[r.start : r.stop] for r in row_order(len(rows), arrange, config) or [range(len(rows))]]
    )
    back = source_order(range(len(rows)), arrange, config)
    assert np.array_equal(np.concatenate([joined[r.start : r.stop] for r in back]), rows)


def test_smoothed_norms_are_the_checkpoints(tiny_llama, tmp_path):
    def smooth(tensors):
        tensors["transformer.layers.0.input_layernorm.weight"] *= 2

    source = tiny_llama()
    checkpoint = quantized(source, tmp_path / "trtllm", "FP8", edit=smooth)
    norm = export(checkpoint, source, tmp_path / "out")["model.layers.0.input_layernorm.weight"]
    assert norm.tobytes() == checkpoint.tensor("transformer.layers.0.input_layernorm.weight").tobytes()
