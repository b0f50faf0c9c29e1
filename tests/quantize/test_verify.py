"""Verification finds a scale that is missing, renamed, or of another type or shape, from headers alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.checkpoint.conftest import save
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify

LAYER = "transformer.layers.1."
CASES = [
    ("fp8-rowwise", {}, "mlp.gate.per_channel_scale"),
    ("fp8-rowwise", {}, "attention.clamp_val"),
    ("fp8", {}, "attention.qkv.weights_scaling_factor"),
    ("fp8", {}, "mlp.proj.activation_scaling_factor"),
    ("int8-wo", {"target_sm": 80}, "attention.dense.per_channel_scale"),
    ("int8-sq", {}, "attention.dense.smoother"),
    ("int8-sq", {}, "mlp.fc.per_channel_scale"),
    ("int8-sq", {}, "input_layernorm.scale_to_int"),
    ("int8-sq", {"smoothquant": "per-channel"}, "mlp.quantization_scaling_factor"),
    ("int8-sq", {"smoothquant": "per-tensor"}, "mlp.gate.act_scale"),
    ("int8-sq", {"smoothquant": "per-token"}, "attention.qkv.per_channel_scale"),
    ("int8-sq", {"smoothquant": "qdq"}, "attention.qkv.prequant_scaling_factor"),
    ("none", {"kv_cache": "int8"}, "attention.kv_cache_scaling_factor"),
]


@pytest.mark.parametrize(("weights", "arguments", "suffix"), CASES)
def test_the_scale_that_is_wrong_is_named(model, ranges, write, weights, arguments, suffix):
    if weights in ("fp8", "int8-sq") or arguments.get("kv_cache"):
        arguments = arguments | {"ranges": ranges}
    checkpoint = write(model, weights, **arguments)
    name, file = LAYER + suffix, checkpoint.folder / "rank0.safetensors"
    tensors = {each: np.array(checkpoint.tensor(each)) for each in checkpoint.names}

    def told(edited: dict[str, np.ndarray]) -> list[tuple[str, str]]:
        save(file, edited)
        return [(problem.key, problem.message) for problem in verify(checkpoint.folder)]

    rest = {each: value for each, value in tensors.items() if each != name}
    missing, foreign = "the tensor is missing", "the tensor is none of this architecture's"
    assert told(rest) == [(name, missing)]
    assert sorted(told(rest | {f"{name}s": tensors[name]})) == [(name, missing), (f"{name}s", foreign)]
    ((key, message),) = told(rest | {name: tensors[name].astype(np.float64).astype("int32")})
    assert (key, "data type is int32" in message) == (name, True)
    ((key, message),) = told(rest | {name: np.ones((3, 3), tensors[name].dtype)})
    assert (key, "shape is [3, 3]" in message) == (name, True)
    assert told(tensors) == []


def test_int8_weights_of_one_gpu_do_not_pass_for_portable_ones(model, write):
    import json

    checkpoint = write(model, "int8-wo", target_sm=89)
    assert checkpoint.config["trtkit"] == {"target_sm": 89, "layout": "interleaved"}
    path = checkpoint.folder / "config.json"
    path.write_text(json.dumps({**checkpoint.config, "trtkit": {}}))
    assert any("layout of one GPU family" in problem.message for problem in verify(checkpoint.folder))
    assert TrtllmCheckpoint.open(checkpoint.folder).config["quantization"]["quant_algo"] == "W8A16"
