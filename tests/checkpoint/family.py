"""What the tests of the model families share: tiny folders from a configuration, and conversions that verify."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.checkpoint.conftest import save
from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.errors import ContractError
from trtkit.plan.hf_config import parse_hf_config
from trtkit.plan.memory import weights_bytes
from trtkit.plan.resolve import quant_plan

Shapes = dict[str, tuple[int, ...]]

# What transformers writes into every configuration, and what changes nothing.
COMMON = {
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
}
TINY = COMMON | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "vocab_size": 260,
    "tie_word_embeddings": False,
    "eos_token_id": 257,
}


def keys_of_errors(config: dict) -> list[str]:
    try:
        parse_hf_config(config)
    except ContractError as error:
        return [problem.key for problem in error.problems]
    return []


def parameters(config: dict) -> int:
    """Return the number of weights that the plan counts."""
    model, _ = parse_hf_config(config)
    routers = 0 if model.moe is None else model.num_layers * model.moe.num_experts * model.hidden_size
    # In bfloat16 everything takes two bytes, but routers four.
    return weights_bytes(model, WEIGHTS["none"], "bfloat16") // 2 - routers


def decoder_shapes(config: dict, mlp: Shapes) -> Shapes:
    """Return the source tensors of a decoder of Llama's form; ``mlp`` has those of one layer's feed-forward part."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        **mlp,
    }
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes if config["tie_word_embeddings"] else shapes | {"lm_head.weight": (vocab, hidden)}


def gated_shapes(prefix: str, hidden: int, width: int, names=("gate_proj", "up_proj", "down_proj")) -> Shapes:
    gate, up, down = (f"{prefix}{name}.weight" for name in names)
    return {gate: (width, hidden), up: (width, hidden), down: (hidden, width)}


def write_model(folder: Path, config: dict, shapes: Shapes) -> Path:
    """Write a model of random weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    save(
        folder / "model.safetensors",
        {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()},
    )
    return folder


def model_writer(folder: Path, config: dict, shapes: Callable[[dict], Shapes]) -> Callable[..., Path]:
    """Return what writes tiny models: ``edit`` changes the tensors' shapes, other arguments ``config.json``."""

    def write(name="hf", edit=lambda shapes: None, **changes) -> Path:
        changed = config | changes
        tensors = shapes(changed)
        edit(tensors)
        return write_model(folder / name, changed, tensors)

    return write


def convert_model(folder: Path, ranks: Parallelism = ONE_RANK, weights: str = "none") -> TrtllmCheckpoint:
    """Convert in float32; the result has to verify."""
    out = folder.with_name(f"{folder.name}-out")
    convert(
        HfCheckpoint.open(folder), out, dtype="float32", recipe=Plain(quant_plan(weights)), parallelism=ranks
    )
    assert verify(out) == []
    return TrtllmCheckpoint.open(out)


def changed_keys(before: dict, after: dict) -> set[str]:
    """Return the keys of two files that differ."""
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
