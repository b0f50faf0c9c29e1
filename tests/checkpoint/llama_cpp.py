"""GGUF files as llama.cpp's own converter writes them, from models of transformers. Names are those of ``gguf``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

ARCHITECTURES = {
    "llama": "LLAMA",
    "mistral": "LLAMA",
    "mixtral": "LLAMA",
    "granite": "GRANITE",
    "qwen2": "QWEN2",
    "qwen2_moe": "QWEN2MOE",
    "qwen3": "QWEN3",
    "qwen3_moe": "QWEN3MOE",
    "gemma": "GEMMA",
    "gemma2": "GEMMA2",
    "gemma3_text": "GEMMA3",
    "phi3": "PHI3",
    "gpt2": "GPT2",
    "gpt_neox": "GPTNEOX",
    "falcon": "FALCON",
}
Named = Iterator[tuple[str, np.ndarray]]


def write(
    folder: Path, path: Path, *, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
) -> None:
    """Write a model whose ``config.json`` is in the spelling of transformers 4; matrices become ``kind``."""
    config = json.loads((folder / "config.json").read_text())
    arch = gguf.MODEL_ARCH[ARCHITECTURES[config["model_type"]]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    set_parameters(writer, config)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map(arch, layers)
    for name, value in [*modified(load_file(folder / "model.safetensors"), config), *frequencies(config)]:
        stem, part = name.rsplit(".", 1)
        data = np.ascontiguousarray(value)
        plain = value.ndim == 1 or value.shape[-1] % 32
        raw = gguf.GGMLQuantizationType.F32 if plain else kind
        mapped = names.get_name(stem) or stem
        writer.add_tensor(f"{mapped}.{part}", gguf.quants.quantize(data, raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def set_parameters(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Follow ``set_gguf_parameters`` of each class."""
    kind = config["model_type"]
    hidden = config.get("hidden_size", config.get("n_embd"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    writer.add_block_count(config.get("num_hidden_layers", config.get("n_layer")))
    writer.add_embedding_length(hidden)
    writer.add_head_count(heads)
    if kind in ("gpt2", "gpt_neox", "falcon"):
        set_old(writer, config, hidden)
        return
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head = config.get("head_dim") or hidden // heads
    if kind != "phi3" and config.get("head_dim") and kind != "granite":
        writer.add_key_length(head)
        writer.add_value_length(head)
    if kind in ("llama", "mistral", "mixtral", "granite"):
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head)
    if kind not in ("gemma", "gemma2"):
        writer.add_rope_freq_base(config["rope_theta"])
    set_scaling(writer, config)
    set_special(writer, config, hidden // heads)


def set_old(writer: gguf.GGUFWriter, config: dict[str, Any], hidden: int) -> None:
    if config["model_type"] == "gpt2":
        writer.add_context_length(config["n_positions"])
        writer.add_feed_forward_length(4 * hidden)
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    elif config["model_type"] == "falcon":
        writer.add_context_length(2048)
        writer.add_tensor_data_layout("jploski")
        writer.add_feed_forward_length(4 * hidden)
        writer.add_head_count_kv(kv_heads(config))
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_rope_dimension_count(int(config["rotary_pct"] * hidden // config["num_attention_heads"]))
        writer.add_parallel_residual(config["use_parallel_residual"])
        writer.add_layer_norm_eps(config["layer_norm_eps"])


def set_scaling(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType[kind.upper()])
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])


def set_special(writer: gguf.GGUFWriter, config: dict[str, Any], head: int) -> None:
    kind = config["model_type"]
    if kind == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if kind in ("gemma2", "gemma3_text", "phi3"):
        writer.add_sliding_window(config["sliding_window"] or 0)
    if kind == "phi3":
        part = config.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int(part * head))
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        if config["rope_scaling"]:
            scale = config["max_position_embeddings"] / config["original_max_position_embeddings"]
            writer.add_rope_scaling_attn_factors(
                math.sqrt(1 + math.log(scale) / math.log(config["original_max_position_embeddings"]))
            )


def frequencies(config: dict[str, Any]) -> Named:
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "longrope":
        for side in ("long", "short"):
            yield f"rope_factors_{side}.weight", np.array(scaling[f"{side}_factor"], np.float32)
    if scaling.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(config, scaling)


def llama3_factors(config: dict[str, Any], scaling: dict[str, Any]) -> np.ndarray:
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high, old = (
        scaling[key] for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    factors = []
    for freq in 1.0 / config["rope_theta"] ** (np.arange(0, head, 2, dtype=np.float32) / head):
        wavelen = 2 * math.pi / freq
        if wavelen < old / high:
            factors.append(1)
        elif wavelen > old / low:
            factors.append(scaling["factor"])
        else:
            smooth = (old / wavelen - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def kv_heads(config: dict[str, Any]) -> int:
    return config["num_kv_heads"] if config["new_decoder_architecture"] else 1


def modified(tensors: dict[str, np.ndarray], config: dict[str, Any]) -> Named:
    """Follow ``modify_tensors`` of each class."""
    kind, experts = config["model_type"], {}
    for name, value in tensors.items():
        if match := re.fullmatch(r"(.+\.experts)\.(\d+)\.(\w+)\.weight", name):
            experts.setdefault((match[1], match[3]), {})[int(match[2])] = value
            continue
        yield name, modify(name, value, kind, config)
    for (prefix, matrix), values in experts.items():
        merged = prefix.replace("model.", "").replace("block_sparse_moe", "feed_forward")
        start = merged if matrix.startswith("w") else prefix
        yield f"{start}.{matrix}.weight", np.stack([values[i] for i in range(len(values))])


def modify(name: str, value: np.ndarray, kind: str, config: dict[str, Any]) -> np.ndarray:
    if kind in ("llama", "mistral", "mixtral", "granite"):
        for side, key in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            if name.endswith((f"{side}_proj.weight", f"{side}_proj.bias")):
                return permute(value, config[key])
    if "gemma" in kind and name.endswith("norm.weight"):
        return value + np.float32(1)
    if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return value.T
    if "query_key_value" in name:
        heads = config["num_attention_heads"]
        groups = heads if kind == "gpt_neox" else kv_heads(config)
        return ungrouped(value, heads, groups)
    return value.squeeze() if value.ndim == 2 and value.shape[0] == 1 else value


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def ungrouped(qkv: np.ndarray, heads: int, groups: int) -> np.ndarray:
    """Put the query heads of all groups before all keys, and these before all values."""
    split = qkv.reshape(groups, heads // groups + 2, -1, *qkv.shape[1:])
    parts = [split[:, :-2], split[:, -2:-1], split[:, -1:]]
    return np.concatenate([part.reshape(-1, *qkv.shape[1:]) for part in parts])
