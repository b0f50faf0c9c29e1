"""What the gate computes with is what the kernels would make of the written bytes."""

# ruff: noqa: E402 - what follows needs torch
from __future__ import annotations

import json
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.checkpoint import quantized_model
from tests.checkpoint.conftest import save
from tests.quantize.dequantize import INPUTS, LINEAR, NORMS
from trtkit.catalog.parallel import Parallelism
from trtkit.catalog.schemes import DEFAULT_EXCLUDED, SCHEMES
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.safetensors import read_header
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.checkpoint.weight_only import dequantize_int8, quantize_int8
from trtkit.errors import InputError
from trtkit.flow.convert import ConvertOptions, choose_recipe
from trtkit.quantize.gate import forms
from trtkit.quantize.gate.activation import rounded, treat
from trtkit.quantize.gate.forms import activation_of, weight_of
from trtkit.quantize.gate.linear import Activation, Grid
from trtkit.quantize.gate.tensors import Candidate, split, weight_errors

SMOOTHQUANT = ("per-channel-per-token", "per-channel", "per-token", "per-tensor", "qdq")
FORMATS = [("fp8", {}), ("fp8-rowwise", {}), *(("int8-sq", {"smoothquant": mode}) for mode in SMOOTHQUANT)]
IDS = ["fp8", "fp8-rowwise", *SMOOTHQUANT]


def gated(checkpoint, model):
    return Candidate.open(checkpoint, HfCheckpoint.open(model))


def by_name(candidate):
    return {f"{mapped.target.layer}.{linear.name}": linear for mapped, linear in candidate.linears()}


def to_int8(values):
    return np.clip(np.rint(values), -128, 127).astype(np.int64)


def to_fp8(values):
    return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def kernel(tensors, layer, name, x):
    """Multiply as the engine does: integers or E4M3 first, then scales."""
    own = {key.removeprefix(f"{layer}{name}."): value for key, value in tensors.items()}
    weight = own["weight"].astype(np.float64)
    if "smoother" in own:
        x = x / own["smoother"]
    if "prequant_scaling_factor" in own:
        x = x * own["prequant_scaling_factor"]
    if "activation_scaling_factor" in own:
        step = own["activation_scaling_factor"]
        counts = to_fp8(x / step) if weight.max() > 127 else to_int8(x / step)
        return counts @ weight.T * step * own["weights_scaling_factor"]
    if "act_scale" in own:
        owner, key = (
            (INPUTS[name], "quantization_scaling_factor") if name in INPUTS else (NORMS[name], "scale_to_int")
        )
        counts = to_int8(x * tensors[f"{layer}{owner}.{key}"])
        return counts @ weight.T * own["per_channel_scale"] * own["act_scale"]
    if own["per_channel_scale"].ndim == 1:
        x = np.clip(x, -1200, 1200)
        step = np.abs(x).max(axis=1, keepdims=True) / 448
        return to_fp8(x / step) @ weight.T * step * own["per_channel_scale"]
    step = np.abs(x).max(axis=1, keepdims=True) / 127
    return to_int8(x / step) @ weight.T * step * own["per_channel_scale"]


@pytest.mark.parametrize(("weights", "arguments"), FORMATS, ids=IDS)
def test_a_layer_computes_what_the_kernel_does(model, ranges, write, weights, arguments):
    arguments = arguments if weights == "fp8-rowwise" else {**arguments, "ranges": ranges}
    checkpoint = write(model, weights, **arguments)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
    linears = by_name(gated(checkpoint, model))
    assert len(linears) == 2 * len(LINEAR)
    for place, linear in linears.items():
        layer, name = place.split(".", 1)
        x = np.random.default_rng(0).standard_normal((5, linear.tensor.shape[-1])).astype(np.float32) * 3
        x[0, 3] = 5000
        expected = kernel(tensors, f"transformer.layers.{layer}.", name, x.astype(np.float64))
        activation = activation_of(linear)
        found = treat(torch.from_numpy(x), activation).numpy() @ weight_of(linear).T
        # A value half between two steps may go either way in float32.
        assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max(), place
        assert np.median(np.abs(found - expected)) <= 1e-5 * np.abs(expected).max(), place


@pytest.mark.parametrize("ranks", [Parallelism(tp=2), Parallelism(tp=4), Parallelism(tp=2, pp=2)], ids=str)
@pytest.mark.parametrize(("weights", "arguments"), FORMATS, ids=IDS)
def test_ranks_are_put_together_again(model, ranges, write, weights, arguments, ranks):
    arguments = arguments if weights == "fp8-rowwise" else {**arguments, "ranges": ranges}
    whole, divided = (
        by_name(gated(write(model, weights, ranks=each, **arguments), model))
        for each in (Parallelism(), ranks)
    )
    assert whole.keys() == divided.keys()
    for name, linear in divided.items():
        assert np.array_equal(weight_of(linear), weight_of(whole[name])), name
        one, other = activation_of(linear), activation_of(whole[name])
        assert (one.step, one.grid, one.clamp) == (other.step, other.grid, other.clamp)
        per_token = one.step is None and name.endswith(("dense", "proj"))
        assert one.slices == (ranks.tp if per_token else 1)


def test_each_rank_has_its_own_scale_where_the_loader_quantizes(model, write):
    linear = by_name(gated(write(model, "int8-wo", ranks=Parallelism(tp=2)), model))["0.mlp.proj"]
    source = HfCheckpoint.open(model).tensors["model.layers.0.mlp.down_proj.weight"].read()
    halves = [dequantize_int8(*quantize_int8(half)) for half in np.split(source, 2, axis=1)]
    assert np.array_equal(weight_of(linear), np.concatenate(halves, axis=1))


def test_weights_for_one_gpu_are_those_that_its_loader_would_make(model, write):
    portable, baked = (
        by_name(gated(write(model, "int8-wo", **more), model)) for more in ({}, {"target_sm": 80})
    )
    for name, linear in baked.items():
        assert np.array_equal(weight_of(linear), weight_of(portable[name])), name


@pytest.mark.parametrize(
    ("form", "target_sm"),
    [(form, sm) for form in ("gptq-asym", "awq") for sm in (None, 80, 90)]
    + [(form, None) for form in ("ct-int4", "modelopt-int4", "ct-int8", "fbgemm", "modelopt-fp8")],
)
def test_sources_that_were_quantized_already_come_back(form, target_sm, tmp_path):
    written = quantized_model.write(tmp_path / "hf", quantized_model.FORMATS[form])
    source = HfCheckpoint.open(written.folder)
    recipe = choose_recipe(
        source, ConvertOptions(target_sm=target_sm, trtllm_version="0.17" if target_sm == 90 else None)
    )
    convert(source, tmp_path / "out", dtype="float16", recipe=recipe)
    candidate = Candidate.open(TrtllmCheckpoint.open(tmp_path / "out"), source)
    for mapped, linear in candidate.linears():
        factor = getattr(activation_of(linear), "factor", None)
        weight = weight_of(linear) * (1 if factor is None else factor)
        for tensor in split(weight, mapped, source.config):
            truth = written.truth[tensor.name.removesuffix(".weight")]
            # Scales of several layers that became one are not those of each.
            assert np.abs(tensor.values - truth).max() <= 0.07 * np.abs(truth).max(), tensor.name


def test_every_algorithm_that_is_written_has_a_formula():
    assert forms._WEIGHTS.keys() == SCHEMES.keys()
    suffixes = {"activation_scaling_factor", "prequant_scaling_factor", "smoother"}
    treated = {name for name, scheme in SCHEMES.items() if suffixes & {part.suffix for part in scheme.parts}}
    assert treated | {"FP8_PER_CHANNEL_PER_TOKEN"} == forms._ACTIVATIONS.keys()


def test_int4_weights_with_fp8_activations_are_codes_times_their_groups_scale():
    rng = np.random.default_rng(0)
    codes, scale = rng.integers(-8, 8, (6, 128)), rng.uniform(0.01, 0.02, (6, 2)).astype(np.float32)
    packed = ((codes[0::2] & 15) | ((codes[1::2] & 15) << 4)).astype(np.uint8).view(np.int8)
    second = np.float32([0.16 / 448])
    parts = {"weight": packed, "weights_scaling_factor": scale, "weights_scaling_factor_2": second}
    found = forms._WEIGHTS["W4A8_AWQ"](parts, SimpleNamespace(quantization={"group_size": 64}))
    assert np.allclose(found, codes * np.repeat(scale, 64, axis=1), rtol=2**-10)


def test_smoothing_is_no_error_of_the_weights(model, ranges, write):
    candidate = gated(write(model, "int8-sq", ranges=ranges), model)
    for mapped in candidate.mapped:
        errors = weight_errors(candidate, mapped, candidate.tensors(mapped))
        assert all(0 < error < 0.06 for error in errors.values()), errors


def test_ranks_that_contradict_each_other_are_refused(model, write):
    checkpoint = write(model, "none", ranks=Parallelism(tp=2))
    file = checkpoint.folder / "rank1.safetensors"
    tensors = {name: np.array(info.read()) for name, info in read_header(file).items()}
    tensors["transformer.ln_f.weight"][0] += 1
    save(file, tensors)
    candidate = gated(TrtllmCheckpoint.open(checkpoint.folder), model)
    with pytest.raises(InputError, match=r"transformer\.ln_f\.weight of rank 0 contradicts"):
        [candidate.tensors(mapped) for mapped in candidate.mapped]


def test_another_model_is_refused_by_what_differs(model, tiny_llama, write):
    other = tiny_llama(name="other", dtype=np.float32, attention_bias=True, mlp_bias=True, rope_theta=500.0,
                       hidden_size=128, intermediate_size=256, vocab_size=96)  # fmt: skip
    with pytest.raises(InputError, match="rotary_base differ"):
        gated(write(model, "none"), other)


def test_layers_that_an_engine_leaves_alone_are_computed_as_they_are(model, write):
    checkpoint = write(model, "int8-wo")
    file = checkpoint.folder / "config.json"
    config = json.loads(file.read_text())
    config["quantization"]["exclude_modules"] = [*DEFAULT_EXCLUDED, "*.mlp.proj", "*.mlp.proj.weight"]
    file.write_text(json.dumps(config))
    candidate = gated(TrtllmCheckpoint.open(checkpoint.folder), model)
    for tensor, linear in candidate.linears():
        exact = np.array_equal(weight_of(linear), checkpoint.tensor(tensor.target.name))
        assert exact == tensor.target.name.endswith("mlp.proj.weight")


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30),
    st.sampled_from(Grid),
    st.floats(2**-6, 2**6, width=32),
)
def test_rounding_stays_on_the_grid_and_ends_at_its_end(values, grid, step):
    x = torch.tensor(values)
    found = rounded(x, grid, step)
    assert torch.equal(rounded(found, grid, step), found)
    inside = x.abs() <= grid.value * step
    half = step / 2 if grid is Grid.INT8 else torch.clamp(x.abs() / 16, min=step * 2**-10)
    assert ((found - x).abs() <= half * 1.001)[inside].all()
    assert (found[~inside].abs() >= 127 * step * 0.999).all()


def test_a_token_of_zeros_stays_one():
    for grid in Grid:
        assert not treat(torch.zeros(2, 8), Activation(grid)).any()


def test_slices_of_a_token_have_their_own_steps():
    x = torch.tensor([[1.0, 0.3, 1000.0, 300.0]])
    together, apart = treat(x, Activation(Grid.INT8)), treat(x, Activation(Grid.INT8, slices=2))
    assert together[0, 1] == 0
    assert apart[0, 1] == pytest.approx(0.3, abs=0.5 / 127)
