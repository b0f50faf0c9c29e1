"""Files of activation ranges: what is missing, wrong or of another model is named."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantize.conftest import record
from trtkit.errors import ContractError, InputError

Q, DOWN = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"


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
    ],
    ids=["missing", "shape", "nan", "inf", "negative", "zero", "other weights"],
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
