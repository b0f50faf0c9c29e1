"""Tiny models as each tool saves them, written from the definition of its format, with what they stand for.

Every writer takes numbers that are quantized already, so that nothing has to be rounded to know the truth.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.checkpoint.conftest import save
from trtkit.checkpoint.safetensors import read_header

GROUP = 64
HIDDEN, HEADS, KV_HEADS, HEAD = 256, 8, 2, 32
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 16,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (512, HIDDEN),
    "mlp.up_proj": (512, HIDDEN),
    "mlp.down_proj": (HIDDEN, 512),
}
PHI3 = {
    "self_attn.qkv_proj": (HIDDEN + 2 * KV_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_up_proj": (1024, HIDDEN),
    "mlp.down_proj": (HIDDEN, 512),
}
EXPERTS = 4
MIXTRAL = {name: LLAMA[name] for name in LLAMA if name.startswith("self_attn.")} | {
    f"block_sparse_moe.experts.{expert}.{name}": (HIDDEN, 512) if name == "w2" else (512, HIDDEN)
    for expert in range(EXPERTS)
    for name in ("w1", "w2", "w3")
}
SHIFTS = 4 * np.arange(8, dtype=np.uint32)

Tensors = dict[str, np.ndarray]
Layer = Callable[[np.random.Generator, int, int], "tuple[Tensors, np.ndarray]"]


@dataclass(frozen=True)
class Format:
    """How one tool saves a model."""

    block: dict
    layer: Layer
    """Gives the parts of a layer by suffix, and the weight that they stand for."""
    key: str = "quantization_config"
    kv_names: tuple[str, str] | None = None


def words(nibbles: np.ndarray) -> np.ndarray:
    """Pack unsigned nibbles, 8 to an int32 along the last axis, the first one lowest."""
    parts = nibbles.astype(np.uint32).reshape(*nibbles.shape[:-1], -1, 8)
    return np.bitwise_or.reduce(parts << SHIFTS, axis=-1).view(np.int32)


def group_scales(rng, out, width, dtype=np.float16):
    return rng.uniform(0.001, 0.01, (out, width // GROUP)).astype(dtype)


def spread(values):
    """Give every column what its group has."""
    return np.repeat(values.astype(np.float32), GROUP, axis=1)


def codes4(rng, out, width):
    return rng.integers(0, 16, (out, width))


def gptq(*, symmetric, offset=1) -> Layer:
    def layer(rng, out, width):
        codes, scales = codes4(rng, out, width), group_scales(rng, out, width)
        zeros = np.full(scales.shape, 8) if symmetric else rng.integers(offset, 16, scales.shape)
        parts = {
            "qweight": words(codes).T,
            "qzeros": words(zeros.T - offset),
            "scales": scales.T,
            "g_idx": (np.arange(width) // GROUP).astype(np.int32),
        }
        return parts, (codes - spread(zeros)) * spread(scales)

    return layer


def awq(rng, out, width):
    codes, scales = codes4(rng, out, width), group_scales(rng, out, width)
    zeros = rng.integers(0, 16, scales.shape)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(columns):
        return words(columns.reshape(len(columns), -1, 8)[:, :, order].reshape(len(columns), -1))

    parts = {"qweight": pack(codes.T), "qzeros": pack(zeros.T), "scales": scales.T}
    return parts, (codes - spread(zeros)) * spread(scales)


def compressed_int4(*, symmetric=True) -> Layer:
    def layer(rng, out, width):
        codes, scales = codes4(rng, out, width), group_scales(rng, out, width, ml_dtypes.bfloat16)
        parts = {
            "weight_packed": words(codes),
            "weight_scale": scales,
            "weight_shape": np.array([out, width]),
        }
        zeros = np.full(scales.shape, 8)
        if not symmetric:
            zeros = rng.integers(0, 16, scales.shape)
            parts["weight_zero_point"] = words(zeros.T).T
        return parts, (codes - spread(zeros)) * spread(scales)

    return layer


def modelopt_int4(rng, out, width):
    codes, scales = rng.integers(-8, 8, (out, width)), group_scales(rng, out, width, np.float32)
    halves = (codes & 15).astype(np.uint8)
    parts = {"weight": halves[0::2] | (halves[1::2] << 4), "weight_scale": scales}
    return parts, codes * spread(scales)


def fp8_values(rng, out, width):
    values = rng.normal(0, 60, (out, width)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    values[0, :2] = 448, -448
    return values


def fp8_tensor(*, dtype=np.float32, shape=()) -> Layer:
    def layer(rng, out, width):
        values, scale = fp8_values(rng, out, width), rng.uniform(0.0005, 0.001, shape).astype(dtype)
        parts = {
            "weight": values,
            "weight_scale": np.asarray(scale),
            "input_scale": np.asarray(rng.uniform(0.01, 0.02, shape).astype(dtype)),
        }
        return parts, values.astype(np.float32) * np.float32(scale)

    return layer


def fp8_rows(*, dtype=np.float32, rows=True) -> Layer:
    def layer(rng, out, width):
        values = fp8_values(rng, out, width)
        scales = rng.uniform(0.0005, 0.001, (out, 1) if rows else (1,)).astype(dtype)
        return {"weight": values, "weight_scale": scales}, values.astype(np.float32) * scales.astype(
            np.float32
        )

    return layer


def int8_rows(rng, out, width):
    values = rng.integers(-128, 128, (out, width)).astype(np.int8)
    scales = rng.uniform(0.0005, 0.001, (out, 1)).astype(ml_dtypes.bfloat16)
    return {"weight": values, "weight_scale": scales}, values * scales.astype(np.float32)


def compressed(name, weights, inputs=None, **more) -> dict:
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    block = {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": group}}
    return block | {"ignore": ["lm_head"], "kv_cache_scheme": None} | more


TOKEN = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
FLOAT8_ROWS = FLOAT8 | {"strategy": "channel"}
INT8_ROWS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
MODELOPT = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
MODELOPT_INT4 = MODELOPT | {"quant_algo": "W4A16_AWQ", "group_size": GROUP, "has_zero_point": False}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
DYNAMIC8 = TOKEN | {"type": "float"}

FORMATS: dict[str, Format] = {
    "gptq-sym": Format(GPTQ, gptq(symmetric=True)),
    "gptq-asym": Format(GPTQ | {"sym": False}, gptq(symmetric=False)),
    "gptq-v2": Format(GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, gptq(symmetric=False, offset=0)),
    "awq": Format(AWQ, awq),
    "ct-int4": Format(compressed("pack-quantized", INT4), compressed_int4()),
    "ct-int4-asym": Format(
        compressed("pack-quantized", INT4 | {"symmetric": False}), compressed_int4(symmetric=False)
    ),
    "ct-int8": Format(compressed("int-quantized", INT8_ROWS, TOKEN | {"type": "int"}), int8_rows),
    "ct-fp8": Format(
        compressed("float-quantized", FLOAT8, FLOAT8, kv_cache_scheme=FLOAT8),
        fp8_tensor(dtype=ml_dtypes.bfloat16, shape=(1,)),
        kv_names=("self_attn.k_scale", "self_attn.v_scale"),
    ),
    "ct-fp8-dynamic": Format(
        compressed("float-quantized", FLOAT8_ROWS, DYNAMIC8), fp8_rows(dtype=ml_dtypes.bfloat16)
    ),
    "ct-fp8-one-scale": Format(compressed("naive-quantized", FLOAT8, DYNAMIC8), fp8_rows(rows=False)),
    "modelopt-fp8": Format(MODELOPT, fp8_tensor(), "hf_quant_config"),
    "modelopt-fp8-kv": Format(
        MODELOPT | {"kv_cache_quant_algo": "FP8"},
        fp8_tensor(),
        "hf_quant_config",
        kv_names=("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    ),
    "modelopt-fp8-rows": Format(
        MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, fp8_rows(), "hf_quant_config"
    ),
    "modelopt-int4": Format(MODELOPT_INT4, modelopt_int4, "hf_quant_config"),
    "autofp8": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, fp8_tensor()
    ),
    "fbgemm": Format(FBGEMM, fp8_rows()),
}


@dataclass(frozen=True)
class Source:
    """A saved model."""

    folder: Path
    truth: dict[str, np.ndarray]
    """Weights of the linear layers by their plain names, without ``.weight``."""


def write(folder: Path, form: Format, *, layers=LLAMA, edit=lambda tensors: None, config=None) -> Source:
    """Save a model with random numbers; ``edit`` changes its tensors, ``config`` its configuration."""
    rng = np.random.default_rng(0)
    tensors, truth = plain_tensors(rng), {}
    for index in range(CONFIG["num_hidden_layers"]):
        for name, (out, width) in layers.items():
            module = f"model.layers.{index}.{name}"
            parts, truth[module] = form.layer(rng, out, width)
            tensors |= {f"{module}.{suffix}": np.ascontiguousarray(part) for suffix, part in parts.items()}
        for place, name in enumerate(form.kv_names or ()):
            tensors[f"model.layers.{index}.{name}"] = np.float32([1.5 + place])
    edit(tensors)
    folder.mkdir(parents=True)
    save(folder / "model.safetensors", tensors)
    content, block = CONFIG | (config or {}), form.block
    if form.key == "hf_quant_config":
        text = json.dumps({"producer": {"name": "modelopt"}, "quantization": block})
        (folder / "hf_quant_config.json").write_text(text)
    else:
        content = {form.key: block} | content
    (folder / "config.json").write_text(json.dumps(content))
    return Source(folder, truth)


def plain_tensors(rng) -> Tensors:
    shapes = {"model.embed_tokens.weight": (16, HIDDEN), "lm_head.weight": (16, HIDDEN)}
    norms = ["model.norm"]
    for index in range(CONFIG["num_hidden_layers"]):
        norms += [f"model.layers.{index}.{kind}_layernorm" for kind in ("input", "post_attention")]
    shapes |= {f"{name}.weight": (HIDDEN,) for name in norms}
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def load(path: Path) -> Tensors:
    return {name: np.array(info.read()) for name, info in read_header(path).items()}
