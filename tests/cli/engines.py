"""Engines of TensorRT-LLM as folders, with stand-ins for the plans."""

from __future__ import annotations

import json
from pathlib import Path

from trtkit.engine.store import Stage, Store

PRETRAINED = {
    "architecture": "LlamaForCausalLM", "dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_size": 16, "intermediate_size": 128,
    "vocab_size": 256, "hidden_act": "silu", "norm_epsilon": 1e-5, "max_position_embeddings": 256,
    "rotary_base": 1e4, "rotary_scaling": None, "attn_bias": False, "mlp_bias": False,
    "position_embedding_type": "rope_gpt_neox",
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
}  # fmt: skip
TARGET = {"backend": "tensorrt", "gpu": "h100-sxm", "sm": 90, "trtllm": "1.1", "image": "26.02"}
ORIGIN = {
    "contract": {"path": "/contracts/chat.yaml", "name": "chat", "set": ["engine.gpu=h100-sxm"]},
    "target": TARGET,
}


def write_engine(out: Path) -> dict:
    """Write what TensorRT-LLM's builder leaves, for two ranks."""
    config = {"version": "1.1.0", "pretrained_config": PRETRAINED, "build_config": {"max_batch_size": 8}}
    (out / "config.json").write_text(json.dumps(config))
    for rank in range(2):
        (out / f"rank{rank}.engine").write_bytes(b"plan of rank %d" % rank)
    return {}


def built(folder: Path, target=TARGET, write=write_engine, **origin) -> Path:
    """Put an engine for a target into a store, which gives it its manifest."""
    origin = ORIGIN | origin | {"target": target}
    return Store(folder).produce(Stage("compile", {"sm": 90}, write), origin=origin).path
