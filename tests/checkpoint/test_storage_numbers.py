"""Quantized sources keep their numbers: what the checkpoint stands for is what the source stands for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoint import quantized_judge as judge
from tests.checkpoint import quantized_model as model
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.forms.taken_over import take_over
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify

LAYERS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
PORTABLE = sorted(set(model.FORMATS) - {"ct-int4-asym"})
INT4 = [name for name in model.FORMATS if "int4" in name or "gptq" in name or name == "awq"]
RANKS = [Parallelism(), Parallelism(tp=2), Parallelism(pp=2), Parallelism(tp=4)]
"""With two KV heads, four ranks hold each of them twice."""


def converted(folder: Path, *, ranks=RANKS[0], dtype="float16", target_sm=None) -> TrtllmCheckpoint:
    source, out = HfCheckpoint.open(folder), folder.with_name("out")
    recipe = take_over(
        source.storage, target_sm=target_sm, trtllm_version="0.17.0" if target_sm == 90 else None
    )
    convert(source, out, dtype=dtype, recipe=recipe, parallelism=ranks)
    return TrtllmCheckpoint.open(out)


def weights(checkpoint: TrtllmCheckpoint, ranks: Parallelism):
    """Yield each rank's layers: layer of the model, its name, rank of tensor parallelism, the rank's tensors."""
    for rank in range(ranks.world):
        stage, tp_rank = divmod(rank, ranks.tp)
        tensors = model.load(checkpoint.folder / f"rank{rank}.safetensors")
        per_stage = 2 // ranks.pp
        for local in range(per_stage):
            for name in LAYERS:
                yield stage * per_stage + local, name, tp_rank, f"transformer.layers.{local}.{name}", tensors


def expected(truth, layer, name, ranks, tp_rank):
    return judge.rank_weight(truth, layer, name, ranks.tp, tp_rank, model.HEADS, model.KV_HEADS)


def tolerance(form: str, name: str, want: np.ndarray, tensors, key: str) -> np.ndarray:
    if not form.endswith(("fp8", "fp8-kv")) or name != "attention.qkv":
        # float32 arithmetic in another order; `zero` is float16, the codes are not.
        return np.abs(want).max() * (1e-3 if form in ("gptq-asym", "gptq-v2", "awq") else 1e-6)
    # Q, K and V get one scale: half a step of FP8, which has 3 bits behind the leading one.
    step = tensors[f"{key}.weights_scaling_factor"][0]
    return np.maximum(np.abs(want) * 2**-4, step * 2**-10) * 1.0001


@pytest.mark.parametrize("ranks", RANKS, ids=["tp1", "tp2", "pp2", "tp4"])
@pytest.mark.parametrize("form", PORTABLE)
def test_every_layer_of_every_rank_stands_for_the_sources_numbers(tmp_path, form, ranks):
    source = model.write(tmp_path / "hf", model.FORMATS[form])
    checkpoint = converted(source.folder, ranks=ranks)
    assert verify(checkpoint.folder) == []
    quantization = checkpoint.config["quantization"]
    for layer, name, tp_rank, key, tensors in weights(checkpoint, ranks):
        want = expected(source.truth, layer, name, ranks, tp_rank)
        got = judge.dequantized(tensors, key, quantization)
        assert got.shape == want.shape
        assert (np.abs(got - want) <= tolerance(form, name, want, tensors, key)).all(), key


@pytest.mark.parametrize("target_sm", [80, 90])
@pytest.mark.parametrize("ranks", RANKS, ids=["tp1", "tp2", "pp2", "tp4"])
@pytest.mark.parametrize("form", INT4)
def test_baked_weights_stand_for_the_sources_numbers(tmp_path, form, ranks, target_sm):
    source = model.write(tmp_path / "hf", model.FORMATS[form])
    checkpoint = converted(source.folder, ranks=ranks, target_sm=target_sm)
    assert verify(checkpoint.folder) == []
    assert checkpoint.config["trtkit"]["target_sm"] == target_sm
    for layer, name, tp_rank, key, tensors in weights(checkpoint, ranks):
        if target_sm == 90:
            codes = judge.transposed_codes(tensors[f"{key}.weight"])
        else:
            codes = judge.interleaved_codes(tensors[f"{key}.weight"]).astype(int) - 8
        scales, zeros = (
            tensors[f"{key}.{part}"].astype(np.float32).T for part in ("weights_scaling_factor", "zero")
        )
        got = codes * np.repeat(scales, 64, axis=1) + np.repeat(zeros, 64, axis=1)
        want = expected(source.truth, layer, name, ranks, tp_rank)
        assert np.abs(got - want).max() <= np.abs(want).max() * 2e-3, key


@pytest.mark.parametrize("reshape", [np.ravel, lambda scales: scales[:, :, None]], ids=["less", "more"])
@pytest.mark.parametrize("target_sm", [None, 80])
@pytest.mark.parametrize("form", INT4)
def test_axes_of_one_make_no_difference_to_scales_of_groups(tmp_path, monkeypatch, form, target_sm, reshape):
    if form == "ct-int4-asym" and target_sm is None:
        return
    # Layers 128 wide have one group: then scales have an axis of 1 themselves.
    monkeypatch.setattr(model, "GROUP", 128)
    block = json.loads(json.dumps(model.FORMATS[form].block).replace('"group_size": 64', '"group_size": 128'))
    layers = model.LLAMA | {"self_attn.o_proj": (model.HIDDEN, 128), "self_attn.q_proj": (128, model.HIDDEN)}
    layers |= {f"self_attn.{name}_proj": (64, model.HIDDEN) for name in "kv"}
    config = {"head_dim": 16, "num_key_value_heads": 4}

    def edit(tensors):
        for name in [name for name in tensors if name.endswith(("scales", "weight_scale"))]:
            if reshape is not np.ravel or 1 in tensors[name].shape:
                tensors[name] = reshape(tensors[name])

    written = []
    for place, change in (("plain", lambda _: None), ("other", edit)):
        chosen = replace(model.FORMATS[form], block=block)
        folder = model.write(
            tmp_path / place / "hf", chosen, layers=layers, config=config, edit=change
        ).folder
        written.append(model.load(converted(folder, target_sm=target_sm).folder / "rank0.safetensors"))
    one, other = ({name: part.tobytes() for name, part in parts.items()} for parts in written)
    assert one == other


@pytest.mark.parametrize("form", ["ct-fp8", "ct-fp8-dynamic", "modelopt-int4", "gptq-asym"])
@pytest.mark.parametrize("ranks", [Parallelism(), Parallelism(tp=2)], ids=["tp1", "tp2"])
def test_fused_layers_swap_their_halves_with_their_scales(tmp_path, form, ranks):
    config = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "partial_rotary_factor": 1.0}
    fused = model.Format(model.FORMATS[form].block, model.FORMATS[form].layer, model.FORMATS[form].key,
                         ("self_attn.k_scale", "self_attn.v_scale") if form == "ct-fp8" else None)  # fmt: skip
    source = model.write(tmp_path / "hf", fused, layers=model.PHI3, config=config)
    checkpoint = converted(source.folder, ranks=ranks)
    assert verify(checkpoint.folder) == []
    for rank in range(ranks.tp):
        tensors = model.load(checkpoint.folder / f"rank{rank}.safetensors")
        got = judge.dequantized(tensors, "transformer.layers.1.mlp.fc", checkpoint.config["quantization"])
        gate, up = np.split(source.truth["model.layers.1.mlp.gate_up_proj"], 2)
        want = np.concatenate([np.split(half, ranks.tp)[rank] for half in (up, gate)])
        assert np.abs(got - want).max() <= np.abs(want).max() * 1e-3


@pytest.mark.parametrize("form", ["ct-fp8", "modelopt-fp8-kv"])
def test_the_kv_cache_gets_the_larger_of_the_two_scales_on_every_layer(tmp_path, form):
    checkpoint = converted(model.write(tmp_path / "hf", model.FORMATS[form]).folder, ranks=Parallelism(tp=4))
    assert checkpoint.config["quantization"]["kv_cache_quant_algo"] == "FP8"
    for rank in range(4):
        tensors = model.load(checkpoint.folder / f"rank{rank}.safetensors")
        for layer in range(2):
            name = f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"
            assert tensors[name].tolist() == [2.5]


@pytest.mark.parametrize(
    "names",
    [
        ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
        ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
        ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
        ("self_attn.kv_scale",),
    ],
)
def test_scales_of_the_kv_cache_are_found_under_all_their_names(tmp_path, names):
    form = model.Format(model.FORMATS["ct-fp8"].block, model.FORMATS["ct-fp8"].layer, kv_names=names)
    checkpoint = converted(model.write(tmp_path / "hf", form).folder)
    scale = checkpoint.tensor("transformer.layers.1.attention.kv_cache_scaling_factor")
    assert scale.tolist() == [0.5 + len(names)]


def test_scales_of_the_kv_cache_are_found_where_autofp8_says_so(tmp_path):
    form = model.FORMATS["autofp8"]
    form = replace(form, block=form.block | {"kv_cache_scheme": "static"}, kv_names=("self_attn.kv_scale",))
    checkpoint = converted(model.write(tmp_path / "hf", form).folder)
    assert checkpoint.config["quantization"]["kv_cache_quant_algo"] == "FP8"
    assert checkpoint.tensor("transformer.layers.1.attention.kv_cache_scaling_factor").tolist() == [1.5]


def test_either_key_tells_how_zero_points_are_stored(tmp_path):
    form = model.FORMATS["gptq-v2"]
    renamed = {"format": "gptq_v2", "checkpoint_format": None}
    written = []
    for place, block in (("one", form.block), ("other", form.block | renamed)):
        folder = model.write(tmp_path / place / "hf", replace(form, block=block)).folder
        written.append((converted(folder).folder / "rank0.safetensors").read_bytes())
    assert written[0] == written[1]


def test_scales_of_activations_before_int4_weights_reach_the_engine(tmp_path):
    def edit(tensors):
        for layer in range(2):
            tensors[f"model.layers.{layer}.mlp.down_proj.pre_quant_scale"] = np.linspace(
                0.5, 2, 512, dtype=np.float16
            )

    checkpoint = converted(
        model.write(tmp_path / "hf", model.FORMATS["modelopt-int4"], edit=edit).folder,
        ranks=Parallelism(tp=2),
    )
    parts = [model.load(checkpoint.folder / f"rank{rank}.safetensors") for rank in range(2)]
    name = "transformer.layers.1.{}.prequant_scaling_factor"
    whole = np.concatenate([tensors[name.format("mlp.proj")] for tensors in parts])
    assert (whole == np.linspace(0.5, 2, 512, dtype=np.float16)).all()
    assert (parts[0][name.format("mlp.fc")] == 1).all()


@pytest.mark.parametrize("ranks", [Parallelism(), Parallelism(tp=2), Parallelism(tp=2, moe_ep=2)],
                         ids=["tp1", "tp2", "ep2"])  # fmt: skip
def test_fp8_experts_have_a_scale_each(tmp_path, ranks):
    def add_routers(tensors):
        for layer in range(2):
            name = f"model.layers.{layer}.block_sparse_moe.gate.weight"
            tensors[name] = np.ones((model.EXPERTS, model.HIDDEN), np.float16)

    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": model.EXPERTS,
    }
    config |= {"num_experts_per_tok": 2, "sliding_window": None}
    form = model.FORMATS["modelopt-fp8"]
    source = model.write(tmp_path / "hf", form, layers=model.MIXTRAL, config=config, edit=add_routers)
    checkpoint = converted(source.folder, ranks=ranks)
    assert verify(checkpoint.folder) == []
    for rank in range(ranks.world):
        tensors = model.load(checkpoint.folder / f"rank{rank}.safetensors")
        held = np.split(np.arange(model.EXPERTS), ranks.moe_ep)[rank % ranks.moe_ep]
        part = rank // ranks.moe_ep
        for place, expert in enumerate(held):
            here = f"model.layers.1.block_sparse_moe.experts.{expert}."
            gate, up = (np.split(source.truth[here + name], ranks.moe_tp)[part] for name in ("w1", "w3"))
            down = np.split(source.truth[here + "w2"], ranks.moe_tp, axis=1)[part]
            for name, want in (("fc", np.concatenate([up, gate])), ("proj", down)):
                key = f"transformer.layers.1.mlp.{name}"
                scale = tensors[f"{key}.weights_scaling_factor"][place, 0]
                got = tensors[f"{key}.weight"][place].astype(np.float32) * scale
                limit = np.maximum(np.abs(want) * 2**-4, scale * 2**-10) if name == "fc" else 1e-6
                assert (np.abs(got - want) <= limit * 1.0001).all()


def test_the_code_of_zero_is_zero_by_the_scale_that_the_engine_has(tmp_path):
    checkpoint = converted(model.write(tmp_path / "hf", model.FORMATS["gptq-asym"]).folder, dtype="bfloat16")
    tensors, key = model.load(checkpoint.folder / "rank0.safetensors"), "transformer.layers.1.mlp.fc"
    # The file keeps what the source has; loaders round it.
    scales = tensors[f"{key}.weights_scaling_factor"].astype(ml_dtypes.bfloat16).astype(np.float32).T
    zeros = tensors[f"{key}.zero"].astype(np.float32)
    assert (zeros == (np.rint(zeros / scales) * scales).astype(ml_dtypes.bfloat16)).all()


def test_biases_stay_plain(tmp_path):
    def add_biases(tensors):
        for layer in range(2):
            for name in "qkvo":
                weight = tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"]
                bias = np.full(len(weight), ord(name), np.float16)
                tensors[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = bias

    form, config = model.FORMATS["fbgemm"], {"attention_bias": True}
    checkpoint = converted(
        model.write(tmp_path / "hf", form, edit=add_biases, config=config).folder, ranks=Parallelism(tp=4)
    )
    assert verify(checkpoint.folder) == []
    for rank in range(4):
        tensors = model.load(checkpoint.folder / f"rank{rank}.safetensors")
        bias = tensors["transformer.layers.1.attention.qkv.bias"]
        assert bias.tolist() == [ord("q")] * 64 + [ord("k")] * 32 + [ord("v")] * 32
        assert set(tensors["transformer.layers.1.attention.dense.bias"]) == {ord("o")}
