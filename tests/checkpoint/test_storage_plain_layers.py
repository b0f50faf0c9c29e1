"""Layers that a quantized source has left plain stay plain where engines can have that, and are refused where not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint import quantized_judge as judge
from tests.checkpoint import quantized_model as model
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.catalog.schemes import DEFAULT_EXCLUDED
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.errors import ContractError
from trtkit.flow.convert import ConvertOptions, choose_recipe

DOWN, ALL_Q = "model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj"
LISTS = ("exclude_modules", "ignored_layers", "ignore", "modules_to_not_convert")


def write(folder: Path, form: str, *modules: str) -> model.Source:
    """Save a model with some layers as plain weights of random numbers, and in the list of those left out."""
    chosen, rng = model.FORMATS[form], np.random.default_rng(3)
    listed = next((key for key in LISTS if key in chosen.block), LISTS[-1])
    block = chosen.block | {listed: ["lm_head", *modules]}

    def edit(tensors):
        for module in modules:
            for name in [name for name in tensors if name.startswith(f"{module}.")]:
                del tensors[name]
            shape = model.LLAMA[module.split(".", 3)[3]]
            tensors[f"{module}.weight"] = rng.standard_normal(shape).astype(np.float16)

    return model.write(folder, dataclasses.replace(chosen, block=block), edit=edit)


def take_over(folder: Path, ranks=ONE_RANK, **options) -> TrtllmCheckpoint:
    source, out = HfCheckpoint.open(folder), folder.with_name("out")
    recipe = choose_recipe(source, ConvertOptions(**options))
    convert(source, out, dtype="float16", recipe=recipe, parallelism=ranks)
    return TrtllmCheckpoint.open(out)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("form", ["ct-int4", "awq", "modelopt-fp8", "autofp8", "modelopt-int4"])
def test_a_plain_layer_keeps_its_weights_beside_quantized_ones(tmp_path, form, tp):
    source = write(tmp_path / "hf", form, DOWN)
    checkpoint = take_over(source.folder, Parallelism(tp=tp))
    assert verify(checkpoint.folder) == []
    quantization = checkpoint.config["quantization"]
    assert quantization["exclude_modules"] == [*DEFAULT_EXCLUDED, "transformer.layers.1.mlp.proj"]
    whole = model.load(source.folder / "model.safetensors")[f"{DOWN}.weight"]
    for rank in range(tp):
        tensors = model.load(checkpoint.folder / f"rank{rank}.safetensors")
        plain = {name for name in tensors if name.startswith("transformer.layers.1.mlp.proj.")}
        assert plain == {"transformer.layers.1.mlp.proj.weight"}
        assert np.array_equal(tensors[plain.pop()], np.split(whole, tp, axis=1)[rank])
        want = judge.rank_weight(source.truth, 0, "mlp.proj", tp, rank, model.HEADS, model.KV_HEADS)
        got = judge.dequantized(tensors, "transformer.layers.0.mlp.proj", quantization)
        assert np.abs(got - want).max() <= np.abs(want).max() * 2e-3


@pytest.mark.parametrize(
    ("form", "modules", "options", "problem"),
    [
        ("ct-int4", [ALL_Q], {}, f"{ALL_Q}.weight: is not quantized, and what engines join with it is"),
        ("ct-int4", ["model.layers.0.mlp.up_proj"], {}, "which engines join"),
        ("ct-int4", [DOWN], {"ranks": Parallelism(pp=2)}, "every stage counts its layers from 0"),
        ("ct-int8", [DOWN], {}, f"{DOWN}.weight: is not quantized"),
        ("ct-fp8-dynamic", [DOWN], {}, f"{DOWN}.weight: is not quantized"),
        ("ct-int4", [DOWN], {"target_sm": 80}, f"{DOWN}.weight: is not quantized"),
        (
            "modelopt-fp8-kv",
            [f"model.layers.1.self_attn.{side}_proj" for side in "qkv"],
            {},
            "nothing says how its part of the KV cache is scaled",
        ),
    ],
)
def test_what_engines_cannot_have_is_refused_by_name(tmp_path, form, modules, options, problem):
    folder = write(tmp_path / "hf", form, *modules).folder
    with pytest.raises(ContractError) as caught:
        take_over(folder, **options)
    assert problem in str(caught.value)
    assert "fix: " in str(caught.value)
    assert not folder.with_name("out").exists()
