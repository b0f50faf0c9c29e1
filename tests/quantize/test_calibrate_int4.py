import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.architectures.variants import VARIANTS, llama
from tests.quantize.calibrated import build, prepared
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.safetensors import read_header
from trtkit.checkpoint.trtllm import verify
from trtkit.errors import ContractError, InputError
from trtkit.plan.ranks import group_of
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.calibrate.gptq import search_gptq
from trtkit.quantize.calibrate.gram import Gram
from trtkit.quantize.calibrate.grid import best_scales, plain_scales, quantized
from trtkit.quantize.calibrate.purpose import Purpose
from trtkit.quantize.calibrate.search import pack
from trtkit.quantize.int4_weights import _unpack
from trtkit.quantize.recipes import recipe_for

WIDE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 260}


@pytest.fixture
def inputs():
    """Activations whose channels are correlated, with outliers."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(512, 32, generator=generator) @ torch.randn(32, 128, generator=generator)
    mixed[:, 5] *= 20
    return mixed


def loss(weight, rounded, inputs):
    return float(((weight - rounded) @ inputs.T).square().sum())


def test_scales_of_least_loss_lose_less_than_plain_ones(inputs):
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(1))
    gram = Gram(128, torch.device("cpu"))
    gram.add(inputs)
    block = gram.products.view(2, 64, 2, 64)
    found, plain = best_scales(weight, gram.products, 64), plain_scales(weight, 64)

    def by_group(scales):
        error = (weight - quantized(weight, scales)).view(16, 2, 64)
        return torch.stack([(error[:, g] @ block[g, :, g] * error[:, g]).sum(1) for g in range(2)], 1)

    assert (by_group(found) <= by_group(plain) * (1 + 1e-5)).all()
    assert by_group(found).sum() < 0.9 * by_group(plain).sum()


def test_gptq_loses_less_than_rounding_to_nearest(inputs):
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(1))
    gram = Gram(128, torch.device("cpu"))
    gram.add(inputs)
    found = search_gptq(weight, gram.products, 64, name="x")
    nearest = quantized(weight, best_scales(weight, gram.products, 64))
    assert loss(weight, found.weight(), inputs) < 0.7 * loss(weight, nearest, inputs)


def test_a_channel_that_is_never_used_keeps_its_weights(inputs):
    inputs[:, 7] = 0
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(1))
    gram = Gram(128, torch.device("cpu"))
    gram.add(inputs)
    found = search_gptq(weight, gram.products, 64, name="x")
    step = found.scales[:, 0]
    inside = weight[:, 7].abs() <= 7 * step
    assert inside.any()
    assert ((found.weight() - weight)[:, 7].abs()[inside] <= step[inside] / 2 + 1e-6).all()


def test_groups_of_zeros_stay_zeros_with_a_scale(inputs):
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    gram = Gram(128, torch.device("cpu"))
    gram.add(inputs)
    found = search_gptq(weight, gram.products, 64, name="x")
    assert not found.codes[3].any()
    assert (found.scales > 0).all()


@given(
    hnp.arrays(
        np.int8,
        st.tuples(st.integers(1, 4), st.integers(1, 8).map(lambda n: 2 * n)),
        elements=st.integers(-8, 7),
    )
)
def test_packed_codes_unpack_to_themselves(codes):
    np.testing.assert_array_equal(_unpack(pack(torch.from_numpy(codes)).numpy()), codes)


def dequantized(folder, layer):
    """Return the weight of a layer of a written checkpoint, from its own tensors."""
    tensors = read_header(folder / "rank0.safetensors")
    pairs, scales, factor = (
        tensors[f"{layer}.{part}"].read()
        for part in ("weight", "weights_scaling_factor", "prequant_scaling_factor")
    )
    codes = np.empty((2 * len(pairs), pairs.shape[1]), np.int8)
    codes[0::2], codes[1::2] = pairs << 4 >> 4, pairs >> 4
    groups = codes.reshape(*scales.shape, -1) * scales[..., None]
    return groups.reshape(codes.shape) * factor.astype(np.float32)


def converted(folder, weights, out, **arguments):
    recipe = recipe_for(quant_plan(weights, "auto"), **arguments)
    convert(HfCheckpoint.open(folder), out, dtype="bfloat16", recipe=recipe)
    assert verify(out) == []
    return json.loads((out / "config.json").read_text())["quantization"]


@pytest.fixture
def model(tmp_path):
    return build(tmp_path / "llama", llama(**WIDE))


def calibrated(folder, purpose, **options):
    out = folder.parent / f"{purpose.value}.safetensors"
    prepared(folder, purpose=purpose, samples=3, **options).run(out)
    return out


@pytest.mark.parametrize("purpose", [Purpose.INT4_AWQ, Purpose.INT4_GPTQ, Purpose.W4A8_AWQ])
def test_what_was_found_becomes_a_checkpoint(purpose, model, tmp_path):
    ranges = calibrated(model, purpose)
    block = converted(model, purpose.value, tmp_path / "out", ranges=ranges)
    algorithm = "W4A8_AWQ" if purpose is Purpose.W4A8_AWQ else "W4A16_AWQ"
    assert (block["quant_algo"], block["group_size"], block["has_zero_point"]) == (algorithm, 128, False)
    source = read_header(model / "model.safetensors")
    q = source["model.layers.1.self_attn.q_proj.weight"].read()
    found = dequantized(tmp_path / "out", "transformer.layers.1.attention.qkv")[: len(q)]
    assert np.corrcoef(found.ravel(), q.ravel())[0, 1] > 0.97


def test_the_scales_of_w4a8_are_those_of_what_it_multiplies(model, tmp_path):
    ranges = calibrated(model, Purpose.W4A8_AWQ)
    converted(model, "w4a8-awq", tmp_path / "out", ranges=ranges)
    tensors, recorded = read_header(tmp_path / "out/rank0.safetensors"), read_header(ranges)
    layer = "transformer.layers.0.mlp.proj"
    factor = tensors[f"{layer}.prequant_scaling_factor"].read().astype(np.float32)
    inputs = recorded["model.layers.0.mlp.down_proj|x"].read() * factor
    np.testing.assert_allclose(
        tensors[f"{layer}.activation_scaling_factor"].read(), inputs.max() / 448, rtol=1e-6
    )
    weight = np.abs(dequantized(tmp_path / "out", layer) / factor).max()
    np.testing.assert_allclose(tensors[f"{layer}.weights_scaling_factor_2"].read(), weight / 448, rtol=1e-2)


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "phi3"])
def test_rows_are_moved_where_the_engine_has_them(name, tmp_path):
    settings = dict(VARIANTS[name].settings)
    settings |= (
        {"n_embd": 128}
        if name == "gpt2"
        else {"hidden_size": 128, "intermediate_size": 512 if name == "gpt-neox" else 256}
    )
    folder = build(tmp_path / name, type(VARIANTS[name])(VARIANTS[name].config_class, settings))
    converted(folder, "int4-gptq", tmp_path / "out", ranges=calibrated(folder, Purpose.INT4_GPTQ))
    plain = recipe_for(quant_plan("none", "auto"))
    convert(HfCheckpoint.open(folder), tmp_path / "plain", dtype="bfloat16", recipe=plain)
    for layer in ("attention.qkv", "mlp.fc", "mlp.proj"):
        where = f"transformer.layers.0.{layer}"
        wanted = (
            read_header(tmp_path / "plain/rank0.safetensors")[f"{where}.weight"].read().astype(np.float32)
        )
        found = dequantized(tmp_path / "out", where)
        assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.97


def test_codes_of_another_model_are_refused(model, tmp_path):
    ranges = calibrated(model, Purpose.INT4_GPTQ)
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 3] += 0.01  # fine-tuned, a little
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ContractError, match="was made of another model"):
        converted(model, "int4-gptq", tmp_path / "out", ranges=ranges)


def test_ranges_alone_have_no_int4_weights(model, tmp_path):
    ranges = calibrated(model, Purpose.RANGES)
    with pytest.raises(InputError, match="was made for ranges") as error:
        converted(model, "int4-awq", tmp_path / "out", ranges=ranges)
    assert "--for int4-awq" in error.value.hint


def test_groups_are_as_wide_as_the_model_allows(tmp_path):
    folder = build(tmp_path / "odd", llama(hidden_size=192, intermediate_size=256))
    assert prepared(folder, purpose=Purpose.INT4_AWQ).group_size == 64
    # 128 rows of Q, 32 of K and V each: tiles have as many rows as a group has columns.
    odd_rows = build(tmp_path / "rows", llama(hidden_size=128, intermediate_size=256, num_key_value_heads=1))
    assert prepared(odd_rows, purpose=Purpose.INT4_AWQ).group_size == 64
    assert group_of(HfCheckpoint.open(odd_rows).config, "int4-awq", None) == 64
    for purpose, size, way_out in (
        (Purpose.W4A8_AWQ, None, "int8-wo or fp8 weights"),
        (Purpose.INT4_AWQ, 128, "--group-size 64"),
    ):
        with pytest.raises(ContractError, match=f"no multiple of a group of 128\n    fix: use {way_out}"):
            prepared(folder, purpose=purpose, group_size=size)
    with pytest.raises(InputError, match="not of 32"):
        prepared(folder, purpose=Purpose.INT4_AWQ, group_size=32)


def test_experts_in_int4_are_refused_before_anything_runs(tmp_path):
    folder = build(tmp_path / "mixtral", VARIANTS["mixtral"])
    with pytest.raises(ContractError, match="no experts"):
        prepared(folder, purpose=Purpose.INT4_AWQ)
