"""Mixtures of formats compute in every place what their layers compute alone."""

# ruff: noqa: E402 - what follows needs torch
from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.architectures.variants import llama
from tests.quantize.calibrated import build, prepared
from trtkit.checkpoint.convert import prepare
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.errors import ContractError
from trtkit.flow.convert import ConvertOptions, choose_recipe
from trtkit.quantize.calibrate.purpose import Purpose
from trtkit.quantize.gate.model import load_candidate
from trtkit.quantize.gate.tensors import Candidate

WIDE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 260}
TOKENS = [5, 90, 17, 64, 3, 200]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A tiny model with a tied head, and its ranges with INT4 weights."""
    folder = tmp_path_factory.mktemp("mixed")
    source = build(folder / "hf", llama(**WIDE, tie_word_embeddings=True))
    prepared(source, purpose=Purpose.INT4_AWQ, group_size=64).run(folder / "ranges.safetensors")
    return HfCheckpoint.open(source), folder / "ranges.safetensors"


@pytest.fixture
def mix(calibrated, tmp_path):
    def run(weights: str, **options) -> TrtllmCheckpoint:
        source, ranges = calibrated
        recipe = choose_recipe(source, ConvertOptions(weights, **{"act_range": ranges, **options}))
        prepare(source, dtype="float16", recipe=recipe).run(tmp_path / "out")
        assert verify(tmp_path / "out") == []
        return TrtllmCheckpoint.open(tmp_path / "out")

    return run


MIXED = {"overrides": (("*.mlp.*", "int4-awq"), ("*.0.attention.qkv", "none"))}
INT8 = {"overrides": (("*.mlp.*", "int8-wo"), ("*.1.attention.*", "int8-sq")), "smoothquant": "qdq"}
CASES = [
    ("fp8", MIXED),
    ("fp8", INT8),
    ("fp8", {"exclude": ()}),
    ("int4-awq", {"exclude": ("lm_head", "*layers.1.mlp*")}),
]


def test_each_layer_is_what_its_format_writes(mix):
    mixed = mix("fp8", **MIXED)
    layers = json.loads((mixed.folder / "quant_cfg.json").read_text())["quantized_layers"]
    assert mixed.config["quantization"] == {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}
    assert "transformer.layers.0.attention.qkv" not in layers
    assert layers["transformer.layers.1.attention.qkv"] == {"quant_algo": "FP8"}
    block = {"group_size": 64, "has_zero_point": False, "pre_quant_scale": True}
    assert layers["transformer.layers.1.mlp.fc"] == {"quant_algo": "W4A16_AWQ", **block}
    found = {name: np.array(mixed.tensor(name)) for name in mixed.names}
    assert found["transformer.layers.0.attention.qkv.weight"].dtype == np.float16
    for weights, part in (("int4-awq", ".mlp."), ("fp8", "layers.1.attention.")):
        alone = mix(weights)
        names = [name for name in found if part in name]
        assert [name for name in alone.names if part in name] == names
        assert all(np.array_equal(found[name], alone.tensor(name)) for name in names)


@pytest.mark.parametrize(("weights", "options"), CASES)
def test_the_gate_and_the_cpu_engine_agree(mix, calibrated, weights, options):
    ov = pytest.importorskip("openvino")
    from trtkit.engine.cpu.graph import build_model
    from trtkit.engine.cpu.precision import plugin_properties, runtime_block

    checkpoint = mix(weights, **options)
    executor, _ = load_candidate(
        Candidate.open(checkpoint, calibrated[0]), dtype="float32", progress=lambda *_: None
    )
    wanted = executor.logits(np.array(TOKENS, np.int64))
    exact = plugin_properties(runtime_block(1))
    request = ov.Core().compile_model(build_model(checkpoint), "CPU", exact).create_infer_request()
    ids = np.array([TOKENS], np.int64)
    found = request.infer(
        {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(len(TOKENS))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
    )["logits"][0]
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_int8_layers_are_what_they_are_alone(mix):
    mixed = mix("fp8", **INT8)
    layers = json.loads((mixed.folder / "quant_cfg.json").read_text())["quantized_layers"]
    assert layers["transformer.layers.0.mlp.proj"] == {"quant_algo": "W8A16"}
    found = layers["transformer.layers.1.attention.qkv"]
    assert found == {"quant_algo": "W8A8_SQ_PER_CHANNEL", "smoothquant_val": 0.9}
    tensors = {name: np.array(mixed.tensor(name)) for name in mixed.names}
    for weights, options, part in (
        ("int8-wo", {"act_range": None}, ".mlp."),
        ("int8-sq", {"smoothquant": "qdq"}, "layers.1.attention."),
        ("fp8", {}, "layers.0.attention."),
    ):
        alone = mix(weights, **options)
        names = [name for name in tensors if part in name]
        assert [name for name in alone.names if part in name] == names
        assert all(np.array_equal(tensors[name], alone.tensor(name)) for name in names)


def test_int8_beside_int4_groups_is_found(mix):
    checkpoint = mix("fp8", **MIXED)
    path = checkpoint.folder / "quant_cfg.json"
    content = json.loads(path.read_text())
    content["quantized_layers"]["transformer.layers.1.attention.qkv"] = {"quant_algo": "W8A16"}
    path.write_text(json.dumps(content))
    assert "engines have one kernel for both" in " ".join(map(str, verify(checkpoint.folder)))


def test_a_description_that_contradicts_the_layers_is_found(mix):
    checkpoint = mix("fp8", **MIXED)
    path = checkpoint.folder / "quant_cfg.json"
    content = json.loads(path.read_text())
    layers = content["quantized_layers"]

    def said(layers) -> str:
        path.write_text(json.dumps({**content, "quantized_layers": layers}))
        return " ".join(map(str, verify(checkpoint.folder)))

    plain = {name: block for name, block in layers.items() if not name.endswith("0.attention.dense")}
    assert "0.attention.dense.weights_scaling_factor: the tensor is none of" in said(plain)
    assert "matches no layer" in said({**layers, "transformer.layers.9.mlp.fc": {"quant_algo": "FP8"}})
    assert "engines join" in said({**layers, "transformer.layers.0.mlp.gate": {"quant_algo": "FP8"}})
    assert "no table of layers" in said({**layers, "transformer.layers.0.mlp.fc": {"quant_algo": "NVFP4"}})
    path.unlink()
    assert "quant_cfg.json" in " ".join(map(str, verify(checkpoint.folder)))


def test_formats_that_need_calibrations_of_their_own_are_refused(mix):
    with pytest.raises(ContractError, match="calibrations of their own"):
        mix("int4-awq", overrides=(("*.mlp.*", "int4-gptq"),))
