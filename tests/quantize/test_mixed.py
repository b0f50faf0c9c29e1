"""Layers that stay plain, and layers with formats of their own."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.checkpoint.conftest import save
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export import export_hf
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.errors import ContractError, InputError
from trtkit.flow.convert import ConvertOptions, choose_recipe

FIRST = "transformer.layers.0."


@pytest.fixture
def mix(model, ranges, tmp_path):
    """Convert with patterns; what comes out has to verify."""

    def run(weights: str, *, exclude=None, overrides=(), ranks=None, **options) -> TrtllmCheckpoint:
        source, out = HfCheckpoint.open(model), tmp_path / "mixed"
        given = None if weights in ("none", "int8-wo") and not overrides else ranges
        options = ConvertOptions(weights, act_range=given, exclude=exclude, overrides=overrides, **options)
        recipe = choose_recipe(source, options)
        convert(source, out, dtype="bfloat16", recipe=recipe, parallelism=ranks or Parallelism(1, 1))
        assert verify(out) == []
        return TrtllmCheckpoint.open(out)

    return run


def edit(checkpoint: TrtllmCheckpoint, **changes) -> list[str]:
    """Change the block of config.json, and return what verification says."""
    path = checkpoint.folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization"].update(changes)
    path.write_text(json.dumps(config))
    return [str(problem) for problem in verify(checkpoint.folder)]


@pytest.mark.parametrize("ranks", [Parallelism(1, 1), Parallelism(2, 1)])
@pytest.mark.parametrize(
    ("weights", "options"), [("fp8", {}), ("int8-wo", {}), ("int8-sq", {"smoothquant": "qdq"})]
)
def test_excluded_layers_stay_plain_and_are_named_in_full(mix, weights, options, ranks):
    checkpoint = mix(weights, exclude=("lm_head", f"{FIRST}mlp*"), ranks=ranks, **options)
    named = checkpoint.config["quantization"]["exclude_modules"]
    assert {f"{FIRST}mlp.{each}" for each in ("fc", "gate", "proj")} < set(named)
    assert {"*lm_head", "*vocab_embedding", "*router"} < set(named)
    assert (f"{FIRST}mlp.fc.weight" in named) == (weights == "int8-wo")
    quantized = {"fp8": "float8_e4m3fn", "int8-wo": "bfloat16", "int8-sq": "int8"}[weights]
    dtypes = {name: checkpoint.info(name).dtype for name in checkpoint.names if name.endswith(".weight")}
    assert dtypes[f"{FIRST}mlp.fc.weight"] == dtypes[f"{FIRST}mlp.proj.weight"] == "bfloat16"
    assert dtypes[f"{FIRST}attention.qkv.weight"] == quantized
    assert dtypes["transformer.layers.1.mlp.fc.weight"] == quantized


def test_a_list_of_the_head_alone_is_the_loaders_own(mix):
    assert "exclude_modules" not in mix("int8-sq", exclude=("*lm_head",)).config["quantization"]


def test_overrides_that_only_leave_layers_plain_are_a_list(mix):
    checkpoint = mix("fp8", overrides=((f"{FIRST}*", "none"), ("*layers.1.mlp*", "none")))
    assert checkpoint.config["quantization"]["quant_algo"] == "FP8"
    assert not (checkpoint.folder / "quant_cfg.json").exists()
    assert checkpoint.info("transformer.layers.1.attention.dense.weight").dtype == "float8_e4m3fn"
    assert checkpoint.info("transformer.layers.1.mlp.proj.weight").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("weights", "exclude", "overrides", "message"),
    [
        ("fp8", ("lm_head", "*layers.0.mlpp*"), (), r"'\*layers\.0\.mlpp\*' matches no layer"),
        ("fp8", ("lm_head", f"{FIRST}mlp.fcc"), (), r"near it are transformer\.layers\.0\.mlp\.fc"),
        ("fp8", (), (("*.dens", "none"),), r"'\*\.dens' matches no layer"),
        ("int8-wo", (), (), "leaves the head to be int8-wo"),
        ("fp8", ("lm_head", f"{FIRST}mlp.fc"), (), "which engines join"),
        ("fp8", ("lm_head", "*layers*"), (), "leaves nothing quantized"),
        ("int8-sq", ("lm_head", f"{FIRST}*"), (), "engines quantize every layer or none"),
        ("fp8-rowwise", ("lm_head", f"{FIRST}*"), (), "engines quantize every layer or none"),
        ("int8-sq", None, ((f"{FIRST}*", "fp8"),), "layers cannot be beside those of fp8: engines replace whole"),
        ("fp8", None, ((f"{FIRST}*", "fp8-rowwise"),), "layers cannot be beside those of fp8: engines replace"),
        ("int8-wo", None, ((f"{FIRST}*", "int4-awq"),), "int8-wo layers cannot be beside those of int4-awq"),
        ("fp8", None, (("*mlp*", "int4-awq"), (f"{FIRST}*", "int4-gptq")), "is int4-gptq by .* and int4-awq by"),
        ("fp8", None, (("*0.mlp*", "int4-awq"), ("*1.mlp*", "w4a8-awq")), "found by calibrations of their own"),
        ("fp8", ("lm_head", f"{FIRST}*"), ((f"{FIRST}mlp*", "int4-awq"),), "is int4-awq by .* and none by"),
    ],
)  # fmt: skip
def test_what_no_engine_has_is_refused(mix, weights, exclude, overrides, message):
    with pytest.raises(InputError, match=message) as caught:
        mix(weights, exclude=exclude, overrides=overrides)
    assert "fix: " in str(caught.value)


def test_stages_of_a_pipeline_have_layers_alike(mix):
    checkpoint = mix("fp8", exclude=("lm_head", "*.mlp.*"), ranks=Parallelism(1, 2))
    assert checkpoint.info(f"{FIRST}mlp.fc.weight", 1).dtype == "bfloat16"
    with pytest.raises(ContractError, match="every stage counts its layers from 0"):
        mix("fp8", exclude=("lm_head", f"{FIRST}mlp*"), ranks=Parallelism(1, 2))


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["*lm_head", "*nothing*"], r"'\*nothing\*' matches no layer"),
        (["*lm_head", "*mlp*"], r"leaves transformer\.layers\.0\.mlp\.fc plain by a pattern"),
        (["*lm_head", f"{FIRST}attention*"], r"attention\.qkv\.weights_scaling_factor: the tensor is none"),
        (["*lm_head", f"{FIRST}mlp.fc"], "engines join them"),
        ([], r"lm_head\.weights_scaling_factor: the tensor is missing"),
    ],
)
def test_lists_that_contradict_what_is_stored_are_found(mix, patterns, message):
    assert re.search(message, " ".join(edit(mix("fp8"), exclude_modules=patterns)))


def test_a_list_that_other_loaders_do_not_ask_is_found(mix):
    assert "whatever it says" in edit(mix("int8-sq"), exclude_modules=["*lm_head", "*layers.0.mlp*"])[0]
    said = " ".join(edit(mix("int8-wo"), exclude_modules=["*layers.0.mlp.*[a-z]"]))
    assert "lacks lm_head" in said
    assert "lacks transformer.vocab_embedding" in said


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
@pytest.mark.parametrize("name", ["mlp.fc.activation_scaling_factor", "mlp.proj.weights_scaling_factor"])
def test_scales_that_cannot_be_are_found(mix, name, value):
    checkpoint = mix("fp8")
    tensors = {each: np.array(checkpoint.tensor(each)) for each in checkpoint.names}
    tensors[FIRST + name][...] = value
    save(checkpoint.folder / "rank0.safetensors", tensors)
    ((problem),) = verify(checkpoint.folder)
    assert problem.key == FIRST + name
    assert "finite and greater than 0" in problem.message


def test_an_export_names_its_plain_layers_as_the_source_does(mix, model, tmp_path):
    checkpoint, out = mix("fp8", exclude=("lm_head", f"{FIRST}mlp*")), tmp_path / "hf-out"
    export_hf(checkpoint, HfCheckpoint.open(model), out)
    ignored = json.loads((out / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"]
    branches = {f"model.layers.0.mlp.{each}_proj" for each in ("gate", "up", "down")}
    assert set(ignored) == {"lm_head", *branches}
    exported = HfCheckpoint.open(out).tensors
    assert exported["model.layers.0.mlp.up_proj.weight"].dtype == "bfloat16"
    assert "model.layers.0.mlp.up_proj.weight_scale" not in exported
    assert exported["model.layers.1.mlp.up_proj.weight"].dtype == "float8_e4m3fn"
