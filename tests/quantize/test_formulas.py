"""Quantized checkpoints mean the source's weights, whatever the ranks: by formulas of their own."""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest

from tests.checkpoint.conftest import save
from tests.quantize import dequantize
from tests.quantize.conftest import SIZES, record
from tests.quantize.dequantize import LINEAR, NORMS
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.safetensors import read_header
from trtkit.errors import ContractError
from trtkit.quantize.histogram import BINS, SHIFT

RANKS = [Parallelism(), Parallelism(tp=2), Parallelism(pp=2), Parallelism(tp=4)]
"""Of two KV heads four ranks hold each twice."""
FORMATS = [
    ("fp8-rowwise", None, {}, dequantize.fp8),
    ("fp8", None, {}, dequantize.fp8),
    *(("int8-sq", mode, {"smoothquant": mode}, dequantize.smooth) for mode in
      ("per-channel-per-token", "per-channel", "per-token", "per-tensor")),
    ("int8-sq", "qdq", {"smoothquant": "qdq"}, dequantize.qdq),
    ("int8-sq", "alpha", {"alpha": 0.9}, dequantize.smooth),
]  # fmt: skip


def layers_of(checkpoint, rank):
    """Yield the start of each decoder layer's names, and the tensors of the rank."""
    tensors = {name: checkpoint.tensor(name, rank) for name in checkpoint.ranks[rank]}
    layers = {
        name.split(".attention.qkv.weight")[0] for name in tensors if name.endswith("attention.qkv.weight")
    }
    for layer in sorted(layers):
        yield f"{layer}.", tensors


@pytest.mark.parametrize("ranks", RANKS, ids=["tp1", "tp2", "pp2", "tp4"])
@pytest.mark.parametrize(
    ("weights", "_mode", "arguments", "formula"), FORMATS, ids=lambda each: str(each)[:24]
)
def test_weights_come_back_within_half_a_step(
    model, ranges, write, ranks, weights, _mode, arguments, formula
):
    if weights != "fp8-rowwise":
        arguments = arguments | {"ranges": ranges}
    plain = write(model, "none", ranks=ranks)
    quantized = write(model, weights, ranks=ranks, **arguments)
    for rank in range(ranks.world):
        for (layer, source), (_, tensors) in zip(
            layers_of(plain, rank), layers_of(quantized, rank), strict=True
        ):
            dequantized = (
                functools.partial(formula, tensors, source)
                if formula is dequantize.smooth
                else (functools.partial(formula, tensors))
            )
            for name in LINEAR:
                meant, error = dequantized(layer, name)
                assert (np.abs(meant - source[f"{layer}{name}.weight"]) <= error).all(), (rank, layer, name)
                assert (tensors[f"{layer}{name}.bias"] == source[f"{layer}{name}.bias"]).all()


def test_int8_weights_for_one_gpu_come_back_and_each_rank_has_its_own_scales(model, write):
    # 4 + 2 * 2 heads of 32 are 256 rows.
    for ranks in RANKS[:2]:
        plain = write(model, "none", ranks=ranks)
        baked = write(model, "int8-wo", ranks=ranks, target_sm=80)
        for rank in range(ranks.world):
            for (layer, source), (_, tensors) in zip(
                layers_of(plain, rank), layers_of(baked, rank), strict=True
            ):
                for name in LINEAR:
                    meant, error = dequantize.baked(tensors, layer, name)
                    weight = source[f"{layer}{name}.weight"]
                    assert (np.abs(meant - weight) <= error).all(), (rank, layer, name)
                    largest = np.abs(weight).max(axis=1)
                    assert (tensors[f"{layer}{name}.per_channel_scale"] == largest / 128).all()


def test_smoothing_changes_nothing_but_where_the_numbers_are(model, ranges, write):
    plain, smoothed = write(model, "none"), write(model, "int8-sq", ranges=ranges)
    for (layer, source), (_, tensors) in zip(layers_of(plain, 0), layers_of(smoothed, 0), strict=True):
        for name in NORMS:
            factor = dequantize.smoother(tensors, source, layer, name)
            assert factor.max() > 3 * factor.min()
            normed = np.random.default_rng(0).standard_normal(len(factor))
            exact = normed * source[f"{layer}{NORMS[name]}.weight"] @ source[f"{layer}{name}.weight"].T
            weight = source[f"{layer}{name}.weight"] * factor
            assert np.allclose(
                normed * tensors[f"{layer}{NORMS[name]}.weight"] @ weight.T, exact, rtol=2e-3, atol=2e-3
            )


def test_static_inputs_fill_int8(model, ranges, write):
    recorded = {name: info.read() for name, info in read_header(ranges).items()}
    plain, smoothed = write(model, "none"), write(model, "int8-sq", ranges=ranges, smoothquant="per-tensor")
    layer, source = next(layers_of(plain, 0))
    tensors = {name: smoothed.tensor(name) for name in smoothed.names}
    for name, module, scale in (
        ("attention.qkv", "self_attn.q_proj", "input_layernorm.scale_to_int"),
        ("attention.dense", "self_attn.o_proj", "attention.quantization_scaling_factor"),
        ("mlp.fc", "mlp.gate_proj", "post_layernorm.scale_to_int"),
        ("mlp.proj", "mlp.down_proj", "mlp.quantization_scaling_factor"),
    ):
        largest = (
            recorded[f"model.layers.0.{module}|x"] / dequantize.smoother(tensors, source, layer, name)
        ).max()
        assert tensors[layer + scale] * largest == pytest.approx(127, rel=2.0**-10)


def test_per_tensor_scales_are_shared_where_engines_fuse(model, ranges, write):
    checkpoint = write(model, "fp8", ranges=ranges)
    for layer, tensors in layers_of(checkpoint, 0):
        for scale in ("weights_scaling_factor", "activation_scaling_factor"):
            assert tensors[f"{layer}mlp.fc.{scale}"] == tensors[f"{layer}mlp.gate.{scale}"]
    weights = write(model, "none")
    layer, source = next(layers_of(weights, 0))
    largest = np.abs(source[f"{layer}attention.qkv.weight"]).max()
    assert checkpoint.tensor(f"{layer}attention.qkv.weights_scaling_factor") == np.float32(largest / 448)


def test_bfloat16_and_float16_sources_of_the_same_values_become_the_same(tiny_llama, tmp_path, write):
    source = tiny_llama(**SIZES)
    ranges, same = record(source, tmp_path / "ranges.safetensors"), tmp_path / "same"
    shutil.copytree(source, same)
    tensors = {
        name: info.read().astype(np.float16) for name, info in HfCheckpoint.open(source).tensors.items()
    }
    save(same / "model.safetensors", tensors)
    one = write(source, "int8-sq", dtype="bfloat16", ranges=ranges)
    other = write(same, "int8-sq", dtype="float16", ranges=ranges)
    quantized = [name for name, info in one.tensors.items() if info.dtype in ("int8", "float32")]
    assert len(quantized) == 2 * 14
    for name in quantized:
        assert (one.tensor(name) == other.tensor(name)).all(), name


@pytest.mark.parametrize(
    ("weights", "kv_cache", "arguments"),
    [("none", "int8", {}), ("none", "int8", {"kv_scale": "kv"}), ("fp8", "fp8", {}), ("int8-wo", "int8", {})],
)
@pytest.mark.parametrize("ranks", [Parallelism(), Parallelism(tp=2, pp=2)], ids=["one", "four"])
def test_every_layer_has_one_kv_scale(model, ranges, write, ranks, weights, kv_cache, arguments):
    recorded = {name: info.read() for name, info in read_header(ranges).items()}
    checkpoint = write(model, weights, kv_cache=kv_cache, ranks=ranks, ranges=ranges, **arguments)
    for rank in range(ranks.world):
        for local in range(2 // ranks.pp):
            layer = rank // ranks.tp + local
            outputs = [recorded[f"model.layers.{layer}.self_attn.{name}_proj|y"].max() for name in "qkv"]
            largest = max(outputs[1:]) if kv_cache == "fp8" or arguments else max(outputs)
            scale = checkpoint.tensor(f"transformer.layers.{local}.attention.kv_cache_scaling_factor", rank)
            assert scale == (
                max(largest / 448, 1) if kv_cache == "fp8" else np.float32(largest) / np.float32(127)
            )


def with_caches(recorded, k=30.0, v=8.0):
    for layer in range(2):
        heads = len(recorded[f"model.layers.{layer}.self_attn.k_proj|y"])
        recorded[f"model.layers.{layer}.k_cache|y"] = np.full(heads, k + layer, np.float32)
        recorded[f"model.layers.{layer}.v_cache|y"] = np.full(heads, v, np.float32)
        counts = np.zeros(BINS, np.float32)
        counts[np.float32(k + layer).view(np.uint32) >> SHIFT] = 9
        recorded[f"model.layers.{layer}.kv_cache|h"] = counts


@pytest.mark.parametrize("ranks", [Parallelism(), Parallelism(tp=2, pp=2)], ids=["one", "four"])
def test_a_scale_of_what_the_cache_keeps_is_of_the_rotated_keys(model, write, ranks, tmp_path):
    ranges = record(model, tmp_path / "caches.safetensors", edit=with_caches)
    checkpoint = write(model, "none", kv_cache="int8", kv_scale="cache", ranges=ranges, ranks=ranks)
    for rank in range(ranks.world):
        for local in range(2 // ranks.pp):
            largest = 30 + rank // ranks.tp + local
            scale = checkpoint.tensor(f"transformer.layers.{local}.attention.kv_cache_scaling_factor", rank)
            assert scale == pytest.approx(largest / 127, rel=0.03)


def test_fp8_scales_have_room_for_rotated_keys_where_they_were_recorded(model, write, tmp_path):
    ranges = record(model, tmp_path / "r.safetensors", edit=lambda recorded: with_caches(recorded, k=895))
    checkpoint = write(model, "none", kv_cache="fp8", ranges=ranges)
    assert checkpoint.tensor("transformer.layers.1.attention.kv_cache_scaling_factor") == 2


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda recorded: None, "no range of this layer"),
        (lambda recorded: with_caches(recorded, v=np.nan), "NaN or infinity"),
        (
            lambda recorded: (
                with_caches(recorded),
                recorded.update({"model.layers.0.k_cache|y": np.ones(1, np.float32)}),
            ),
            "shape",
        ),
    ],
)
def test_ranges_of_caches_are_checked_before_anything_is_written(model, write, tmp_path, damage, said):
    ranges = record(model, tmp_path / "bad.safetensors", edit=damage)
    with pytest.raises(ContractError, match=said):
        write(model, "none", kv_cache="int8", kv_scale="cache", ranges=ranges)


def test_fp8_kv_scales_are_one_without_ranges_and_above_it_only_when_values_are_lost(
    model, ranges, write, tmp_path
):
    name = "transformer.layers.1.attention.kv_cache_scaling_factor"
    assert write(model, "none", kv_cache="fp8").tensor(name) == 1

    def loud(recorded):
        recorded["model.layers.1.self_attn.v_proj|y"][3] = 896

    louder = record(model, tmp_path / "loud.safetensors", edit=loud)
    assert write(model, "fp8-rowwise", kv_cache="fp8", ranges=louder).tensor(name) == 2
