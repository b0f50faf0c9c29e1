"""Files of activation ranges: what is missing, wrong or of another model is named."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantize.conftest import record
from trtkit.errors import ContractError, InputError
from trtkit.quantize.smoothing import SmoothingError

Q, DOWN = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"
K, UP = "model.layers.1.self_attn.k_proj", "model.layers.0.mlp.up_proj"


def put(name, value):
    def edit(ranges):
        ranges[name] = np.asarray(value, np.float32)

    return edit


def spoil(name, value):
    def edit(ranges):
        ranges[name][5] = value

    return edit


@pytest.mark.parametrize("weights", ["fp8", "int8-sq"])
@pytest.mark.parametrize(
    ("edit", "key", "message"),
    [
        (lambda ranges: ranges.pop(f"{Q}|x"), f"{Q}|x", "there is no range of this layer"),
        (put(f"{DOWN}|x", np.ones(255)), f"{DOWN}|x", "the shape [255], the layer of the model needs [256]"),
        (spoil(f"{Q}|x", np.nan), f"{Q}|x", "NaN or infinity"),
        (spoil(f"{Q}|x", np.inf), f"{Q}|x", "NaN or infinity"),
        (spoil(f"{Q}|x", -1), f"{Q}|x", "negative"),
        (put(f"{DOWN}|x", np.zeros(256)), f"{DOWN}|x", "nothing went through the layer"),
        (spoil("model.layers.1.self_attn.o_proj|w", 9), "model.layers.1.self_attn.o_proj|w", "not those of the source"),
        (spoil(f"{UP}|w", np.nan), f"{UP}|w", "NaN or infinity"),
        (lambda ranges: ranges.pop(f"{UP}|w"), f"{UP}|w", "there is no range of this layer"),
        (spoil(f"{UP}|w", 9), f"{UP}|w", "not those of the source"),
        (spoil(f"{K}|x", 999), f"{K}|x", "both layers read the same"),
        (spoil(f"{UP}|x", 999), f"{UP}|x", "both layers read the same"),
        (put("model.layers.2.mlp.up_proj|x", [1]), "model.layers.2.mlp.up_proj|x", "the model has 2 layers"),
    ],
    ids=[
        "missing", "shape", "nan", "inf", "negative", "zero", "other weights", "nan weights", "no weights",
        "other branch",
        "another key input", "another branch input", "other layer",
    ],
)  # fmt: skip
def test_the_range_that_is_wrong_is_named(model, tmp_path, write, weights, edit, key, message):
    ranges = record(model, tmp_path / "r.safetensors", edit)
    with pytest.raises(ContractError) as caught:
        write(model, weights, ranges=ranges)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert message in problem.message
    assert problem.hint
    assert problem.file == str(ranges)


def test_all_problems_are_told_at_once(model, tmp_path, write):
    def edit(ranges):
        for name in (f"{Q}|x", f"{DOWN}|x", f"{Q}|y"):
            del ranges[name]

    ranges = record(model, tmp_path / "r.safetensors", edit)
    with pytest.raises(ContractError) as caught:
        write(model, "int8-sq", smoothquant="per-tensor", ranges=ranges)
    assert {problem.key for problem in caught.value.problems} == {f"{Q}|x", f"{DOWN}|x", f"{Q}|y"}


def test_outputs_are_needed_only_where_they_are_used(model, tmp_path, write):
    def inputs_only(ranges):
        for name in [name for name in ranges if not name.endswith("|x")]:
            del ranges[name]

    ranges = record(model, tmp_path / "r.safetensors", inputs_only)
    write(model, "int8-sq", ranges=ranges)
    with pytest.raises(ContractError, match=r"k_proj\|y"):
        write(model, "int8-sq", kv_cache="int8", ranges=ranges)


def test_a_file_that_is_none_is_refused(model, tmp_path, write):
    path = tmp_path / "r.safetensors"
    with pytest.raises(InputError, match="No such file"):
        write(model, "fp8", ranges=path)
    path.write_text("{}")
    with pytest.raises(InputError, match="not a safetensors file"):
        write(model, "fp8", ranges=path)


def test_a_dead_input_channel_keeps_its_size(model, tmp_path, write):
    dead = record(model, tmp_path / "r.safetensors", spoil(f"{DOWN}|x", 0))
    checkpoint = write(model, "int8-sq", ranges=dead)
    assert checkpoint.tensor("transformer.layers.0.mlp.proj.smoother")[0, 5] == 1


def test_ranges_that_float16_cannot_hold_are_refused_for_it(model, tmp_path, write):
    wide = record(model, tmp_path / "r.safetensors", spoil(f"{DOWN}|x", 1e20))
    with pytest.raises(ContractError, match=r"reaches 1e\+20, and activations in float16 end at 65504"):
        write(model, "fp8", ranges=wide, dtype="float16")
    write(model, "fp8", ranges=wide, dtype="bfloat16")


@pytest.mark.parametrize(
    ("largest", "dtype", "said"),
    [(1e20, "bfloat16", "zero"), (1e-20, "float16", r"\d+, and float16 ends at 65504")],
)
def test_smoothing_that_leaves_no_norm_is_refused_as_such(model, tmp_path, write, largest, dtype, said):
    def edit(ranges):
        for name in "qkv":
            ranges[f"model.layers.1.self_attn.{name}_proj|x"][5:9] = largest

    edited = record(model, tmp_path / "r.safetensors", edit)
    told = rf"makes weights of model.layers.1.input_layernorm.weight {said}"
    with pytest.raises(SmoothingError, match=told):
        write(model, "int8-sq", ranges=edited, dtype=dtype)


@pytest.mark.parametrize(
    ("kind", "options", "way_out"),
    [
        ("x", {"weights": "fp8"}, r"leave the layer plain \(exclude\), or use formats that need no ranges"),
        ("y", {"weights": "none", "kv_cache": "int8"}, "use kv_cache: auto"),
        ("y", {"weights": "none", "kv_cache": "fp8"}, "use kv_cache: auto"),
    ],
)
def test_the_way_out_for_a_dead_layer_is_one_for_what_needs_it(
    model, tmp_path, write, kind, options, way_out
):
    def kill(ranges):
        ranges[f"{K}|{kind}"][:] = 0

    dead = record(model, tmp_path / "r.safetensors", kill)
    with pytest.raises(
        ContractError, match=rf"is all zeros: nothing went through the layer\n    fix: {way_out}"
    ):
        write(model, ranges=dead, **options)
