"""Tiny models, written as their publishers would."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from trtkit.checkpoint.safetensors import SafetensorsWriter, TensorSpec
from trtkit.plan.types import QuantPlan

HEADS, KV_HEADS, HIDDEN, INNER = 4, 2, 64, 256
BYTES = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
"""The 256 letters that byte-level BPE writes bytes with."""
TOKENS = [*BYTES, "Ġt", "he", "<|end|>", "<|user|>"]
TYPES = [1] * 258 + [3, 4]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "vocab_size": 260,
    "torch_dtype": "bfloat16",
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def tiny_tensors(config: dict) -> dict[str, np.ndarray]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        here = f"model.layers.{layer}."
        shapes |= {
            here + "input_layernorm.weight": (hidden,),
            here + "post_attention_layernorm.weight": (hidden,),
            here + "self_attn.q_proj.weight": (q, hidden),
            here + "self_attn.k_proj.weight": (kv, hidden),
            here + "self_attn.v_proj.weight": (kv, hidden),
            here + "self_attn.o_proj.weight": (hidden, q),
            here + "mlp.gate_proj.weight": (inner, hidden),
            here + "mlp.up_proj.weight": (inner, hidden),
            here + "mlp.down_proj.weight": (hidden, inner),
        }
        if config["attention_bias"]:
            shapes |= {
                here + f"self_attn.{n}_proj.bias": (s,)
                for n, s in zip("qkvo", (q, kv, kv, hidden), strict=True)
            }
        if config["mlp_bias"]:
            shapes |= {
                here + f"mlp.{n}_proj.bias": (s,)
                for n, s in (("gate", inner), ("up", inner), ("down", hidden))
            }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def save(path: Path, tensors: dict[str, np.ndarray]) -> None:
    specs = [TensorSpec(name, value.dtype.name, value.shape) for name, value in tensors.items()]
    with SafetensorsWriter(path, specs) as writer:
        for spec in writer.order:
            writer.write(spec, [tensors[spec.name]])


@pytest.fixture
def tiny_llama(tmp_path):
    """Write a model; ``edit`` changes its tensors, ``shards`` splits them, other arguments change config.json."""

    def write(*, name="hf", edit=lambda tensors: None, shards=1, dtype=ml_dtypes.bfloat16, **changes) -> Path:
        config = CONFIG | changes
        tensors = {key: value.astype(dtype) for key, value in tiny_tensors(config).items()}
        edit(tensors)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        if shards == 1:
            save(folder / "model.safetensors", tensors)
            return folder
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        for i, file in enumerate(files):
            save(folder / file, dict(list(tensors.items())[i::shards]))
        weight_map = {key: files[i % shards] for i, key in enumerate(tensors)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return folder

    return write


@pytest.fixture
def save_tensors():
    """Write a safetensors file from arrays by name."""
    return save


@pytest.fixture
def plain() -> QuantPlan:
    return QuantPlan("none", "auto", None, None)


@pytest.fixture
def int8_wo() -> QuantPlan:
    return QuantPlan("int8-wo", "auto", "W8A16", None)


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Q and K."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(TOKENS), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
    }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def write_gguf(tmp_path, weights):
    """Write a tiny model; ``quantized`` gives some tensors another type, ``metadata`` replaces keys (None drops)."""

    def write(*, quantized=None, metadata=None, extra=None, tensors_per_part=0) -> Path:
        path = tmp_path / "tiny.gguf"
        changes = dict(metadata or {})
        arch = changes.pop("general.architecture", "llama")
        writer = gguf.GGUFWriter(path, arch, split_max_tensors=tensors_per_part)
        values = {
            "llama.block_count": 1,
            "llama.context_length": 128,
            "llama.embedding_length": HIDDEN,
            "llama.feed_forward_length": INNER,
            "llama.attention.head_count": HEADS,
            "llama.attention.head_count_kv": KV_HEADS,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 100_000.0,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": TYPES,
            "tokenizer.ggml.merges": ["Ġ t", "h e"],
            "tokenizer.ggml.bos_token_id": 258,
            "tokenizer.ggml.eos_token_id": 258,
            "tokenizer.chat_template": "{{ messages }}",
        } | changes
        kinds = {
            str: writer.add_string,
            float: writer.add_float32,
            int: writer.add_uint32,
            list: writer.add_array,
        }
        kinds[bool] = writer.add_bool
        for key, value in values.items():
            if value is not None:
                kinds[type(value)](key, value)
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
        for name, value in {**weights, **(extra or {})}.items():
            count = heads.get(name.split(".")[-1])
            rows = permute(value, count) if count else value
            kind = (quantized or {}).get(name, gguf.GGMLQuantizationType.F32)
            data = gguf.quants.quantize(rows, kind)
            writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
