"""Which formats are written for which models, and which requests are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.conftest import save
from tests.checkpoint.family import TINY, decoder_shapes, gated_shapes, write_model
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.mapping import map_tensors
from trtkit.errors import ContractError, InputError
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.recipes import recipe_for
from trtkit.quantize.weight_only import WeightLayout


@pytest.mark.parametrize(
    ("weights", "kv_cache", "arguments", "message"),
    [
        ("fp8", "auto", {}, "activation ranges are needed for fp8"),
        ("int8-sq", "int8", {}, "needed for int8-sq and an INT8 KV cache"),
        ("none", "int8", {}, "needed for an INT8 KV cache"),
        ("fp8-rowwise", "auto", {"ranges": Path("r")}, "nothing would use activation ranges"),
        ("fp8", "auto", {"smoothquant": "qdq"}, "fp8 weights are not smoothed"),
        ("none", "auto", {"alpha": 0.7}, "none weights are not smoothed"),
        # What nothing uses is refused though it is what the default would be.
        ("none", "auto", {"alpha": 0.5}, "none weights are not smoothed"),
        ("fp8", "auto", {"smoothquant": "per-channel-per-token"}, "fp8 weights are not smoothed"),
        ("none", "auto", {"kv_scale": "qkv"}, "no such choice for kv_cache auto"),
        ("int8-wo", "auto", {"trtllm_version": "0.17"}, "none was given"),
        ("int8-wo", "auto", {"target_sm": 80, "trtllm_version": "bogus"}, "'bogus' is no version"),
        ("int8-sq", "auto", {"smoothquant": "per-row"}, "'per-row' is no form of SmoothQuant"),
        ("int8-sq", "auto", {"alpha": 1.5}, "alpha is 1.5"),
        ("int8-sq", "auto", {"alpha": float("nan")}, "alpha is nan"),
        ("none", "fp8", {"kv_scale": "kv"}, "no such choice for kv_cache fp8"),
        ("none", "int8", {"kv_scale": "v"}, "'v' is nothing a KV scale can cover"),
        ("fp8", "auto", {"target_sm": 80}, "fp8 weights are the same for every GPU"),
        ("int8-wo", "auto", {"target_sm": 100}, "SM 100 is not known"),
        ("int8-wo", "auto", {"target_sm": 90}, "SM 90 is not known but for TensorRT-LLM 0.17"),
        ("int8-wo", "auto", {"target_sm": 90, "trtllm_version": "1.0.0"}, "not known but for TensorRT-LLM 0.17"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(weights, kv_cache, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        recipe_for(quant_plan(weights, kv_cache), **arguments)
    assert caught.value.hint


def record_all(folder: Path) -> Path:
    """Write ranges for every matrix of a model, whether they are of a linear layer or not."""
    path, rng, ranges = folder.with_suffix(".safetensors"), np.random.default_rng(0), {}
    for name, info in HfCheckpoint.open(folder).tensors.items():
        if len(info.shape) == 2:
            module, (rows, columns) = name.removesuffix(".weight"), info.shape
            if ".c_" in name:
                module, rows, columns = f"transformer.{module}", columns, rows
            # Layers with the same input have the same range.
            same = np.random.default_rng(columns)
            ranges[f"{module}|x"] = same.uniform(1, 9, columns).astype(np.float32)
            ranges[f"{module}|y"] = rng.uniform(1, 9, rows).astype(np.float32)
    save(path, ranges)
    return path


def mixtral(folder: Path) -> Path:
    config = TINY | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4}
    mlp = {"block_sparse_moe.gate.weight": (4, 64)}
    for expert in range(4):
        mlp |= gated_shapes(f"block_sparse_moe.experts.{expert}.", 64, 96, ("w1", "w3", "w2"))
    config |= {"num_experts_per_tok": 2, "sliding_window": None}
    return write_model(folder, config, decoder_shapes(config, mlp))


def qwen3(folder: Path) -> Path:
    config = TINY | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
    norms = {"self_attn.q_norm.weight": (16,), "self_attn.k_norm.weight": (16,)}
    return write_model(folder, config, decoder_shapes(config, gated_shapes("mlp.", 64, 96) | norms))


def gemma(folder: Path) -> Path:
    config = TINY | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 16}
    config |= {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    return write_model(folder, config, decoder_shapes(config, gated_shapes("mlp.", 64, 96)))


def gpt2(folder: Path) -> Path:
    from tests.checkpoint.test_gpt2 import GPT2, shapes

    return write_model(folder, GPT2, shapes(GPT2))


def gpt_neox(folder: Path) -> Path:
    from tests.checkpoint import test_gpt_neox

    return write_model(folder, test_gpt_neox.NEOX, test_gpt_neox.shapes(test_gpt_neox.NEOX))


@pytest.mark.parametrize(
    ("build", "weights", "arguments", "ranks"),
    [
        (mixtral, "fp8", {}, Parallelism(tp=2)),
        (mixtral, "fp8", {"kv_cache": "fp8"}, Parallelism(tp=2, moe_ep=2)),
        (qwen3, "fp8", {}, Parallelism(tp=2)),
        (qwen3, "int8-sq", {"smoothquant": "qdq"}, Parallelism(tp=4)),
        (gpt2, "int8-sq", {}, Parallelism(tp=2)),
        (gpt2, "fp8-rowwise", {}, Parallelism()),
        (gpt2, "fp8", {"kv_cache": "int8"}, Parallelism(pp=2)),
        (gemma, "int8-sq", {"kv_cache": "int8"}, Parallelism(tp=2)),
    ],
)
def test_other_families_are_quantized(tmp_path, write, build, weights, arguments, ranks):
    folder = build(tmp_path / "hf")
    if weights != "fp8-rowwise":
        arguments = arguments | {"ranges": record_all(folder)}
    write(folder, weights, ranks=ranks, **arguments)


@pytest.mark.parametrize(
    ("build", "weights", "arguments", "message"),
    [
        (mixtral, "int8-sq", {}, "has no experts with int8-sq weights"),
        (mixtral, "fp8-rowwise", {}, "has no experts with fp8-rowwise weights"),
        (mixtral, "int8-sq", {"smoothquant": "qdq"}, "has no experts with int8-sq weights"),
        (
            qwen3,
            "int8-sq",
            {},
            r"attention\.q_layernorm\.weight: .* nothing of the kind\n.* smoothquant: qdq",
        ),
        (gpt_neox, "fp8-rowwise", {}, "need post_layernorm, which the model has not"),
        (gpt_neox, "int8-sq", {}, r"no SmoothQuant for GPTNeoXForCausalLM\n.* smoothquant: qdq"),
        (qwen3, "fp8-rowwise", {}, r"attention\.k_layernorm\.weight: .* nothing of the kind"),
    ],
)
def test_layers_that_tensorrt_llm_has_not_are_refused(tmp_path, write, build, weights, arguments, message):
    folder = build(tmp_path / "hf")
    if weights == "int8-sq":
        arguments = arguments | {"ranges": record_all(folder)}
    with pytest.raises(ContractError, match=message):
        write(folder, weights, **arguments)


def test_each_expert_has_its_own_fp8_scale(tmp_path, write):
    folder = mixtral(tmp_path / "hf")
    checkpoint = write(folder, "fp8", ranges=record_all(folder), ranks=Parallelism(tp=2, moe_ep=2))
    tensors = HfCheckpoint.open(folder).tensors
    for rank in range(2):
        for local in range(2):
            module = f"model.layers.0.block_sparse_moe.experts.{2 * rank + local}"
            largest = max(np.abs(tensors[f"{module}.{name}.weight"].read()).max() for name in ("w1", "w3"))
            scale = checkpoint.tensor("transformer.layers.0.mlp.fc.weights_scaling_factor", rank)
            assert scale[local] == np.float32(largest / 448)


def test_gemmas_one_is_added_before_smoothing(tmp_path, write):
    folder = gemma(tmp_path / "hf")
    ranges = record_all(folder)
    smoothed = write(folder, "int8-sq", alpha=0.6, ranges=ranges)
    qdq = write(folder, "int8-sq", alpha=0.6, smoothquant="qdq", ranges=ranges)
    name, layer = "input_layernorm.weight", "transformer.layers.0."
    source = HfCheckpoint.open(folder).tensors["model.layers.0.input_layernorm.weight"].read()
    factor = qdq.tensor(layer + "attention.qkv.prequant_scaling_factor")
    assert np.allclose(smoothed.tensor(layer + name), (1 + source) * factor, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("form", "alpha"),
    [("per-channel", 0.9), ("qdq", 0.9), ("per-tensor", 0.5), ("per-channel-per-token", 0.5)],
)
def test_forms_with_one_recorded_scale_move_more_into_the_weights(model, ranges, write, form, alpha):
    left_out = write(model, "int8-sq", smoothquant=form, ranges=ranges)
    assert left_out.config["quantization"]["smoothquant_val"] == alpha


def test_biases_of_norms_are_smoothed_too(tmp_path, write):
    folder = gpt2(tmp_path / "hf")
    plain, smoothed = write(folder, "none"), write(folder, "int8-sq", ranges=record_all(folder))
    for norm in ("input_layernorm", "post_layernorm"):
        weight, bias = (
            plain.tensor(f"transformer.layers.1.{norm}.{part}")
            / smoothed.tensor(f"transformer.layers.1.{norm}.{part}")
            for part in ("weight", "bias")
        )
        assert np.allclose(weight, bias, rtol=4e-3, atol=0)


def test_layers_that_loaders_would_pad_are_refused(tiny_llama, write):
    # Of 2 * 64 + 4 * 16 = 128 rows two ranks would hold 64 each, but the rows of Q are no multiple of 128.
    folder = tiny_llama(intermediate_size=192)
    with pytest.raises(ContractError, match="multiples of 128, the layer is"):
        write(folder, "int8-wo", ranks=Parallelism(tp=2), target_sm=80, dtype="bfloat16")


@pytest.mark.parametrize("weights", ["fp8", "fp8-rowwise", "int8-sq", "int8-wo"])
def test_quantizing_twice_is_refused(model, ranges, weights):
    source = HfCheckpoint.open(model)
    first, *rest = map_tensors(source.config, source.tensors, file="")
    while not first.target.rule.is_linear:
        first, *rest = rest
    packed = dataclasses.replace(first.sources[0], parts={"weight_packed": first.plain[0]})
    twice = dataclasses.replace(first, sources=(packed,))
    arguments = (
        {"target_sm": 80} if weights == "int8-wo" else {"ranges": ranges} if weights != "fp8-rowwise" else {}
    )
    recipe = recipe_for(quant_plan(weights), **arguments)
    problems = recipe.problems([twice], Layout(source.config, "float32", Parallelism()))
    assert packed.name in {problem.key for problem in problems if "quantized already" in problem.message}


def test_the_hopper_layout_of_0_17_is_the_transposed_weight(tiny_llama, write):
    folder = tiny_llama()
    ampere = write(folder, "int8-wo", target_sm=80, dtype="bfloat16")
    hopper = write(folder, "int8-wo", target_sm=90, trtllm_version="0.17.0", dtype="bfloat16")
    assert hopper.config["trtkit"] == {"target_sm": 90, "layout": "transposed", "trtllm_version": "0.17.0"}
    name = "transformer.layers.0.mlp.fc.weight"
    width, out = hopper.tensor(name).shape
    rows = np.array(hopper.tensor(name)).reshape(out, width)
    assert WeightLayout.INTERLEAVED.lay(rows).tobytes() == ampere.tensor(name).tobytes()
