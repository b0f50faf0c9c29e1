"""Join the rank files of a TensorRT-LLM checkpoint into the tensors of one GPU, checking every copy and padding."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.architectures.weights import Config

Tensors = dict[str, Tensor]

# The reference adds these; its own loader rebuilds them and calls the stored ones superfluous.
BUFFERS = ("embed_positions*", "rotary_inv_freq*")
REPLICATED = ("*norm.weight", "*norm.bias", "*ln_f.weight", "*ln_f.bias", "*.dense.bias", "*.proj.bias",
              "*.router.weight", "*.shared_expert_gate.weight", "*.position_embedding.weight")  # fmt: skip


def load(folder: Path) -> tuple[Config, Tensors]:
    """Return the configuration and the joined tensors of a checkpoint folder."""
    config = with_defaults(json.loads((folder / "config.json").read_text()))
    world_size = config["mapping"]["world_size"]
    files = sorted(path.name for path in folder.glob("rank*.safetensors"))
    assert files == sorted(f"rank{rank}.safetensors" for rank in range(world_size)), files
    return config, join(config, [load_file(folder / f"rank{rank}.safetensors") for rank in range(world_size)])


def with_defaults(config: Config) -> Config:
    """Add the defaults that ``PretrainedConfig`` has; every other key must be there."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    defaults = {
        "hidden_act": "gelu",
        "norm_epsilon": 1e-5,
        "position_embedding_type": "learned_absolute",
        "num_key_value_heads": heads,
        "intermediate_size": 4 * hidden,
        "head_size": hidden // heads,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
    }
    return defaults | {
        key: value for key, value in config.items() if value is not None or key not in defaults
    }


def join(config: Config, ranks: list[Tensors]) -> Tensors:
    """Join the stages of pipeline parallelism, each joined over its tensor-parallel ranks.

    Rank ``r`` is tensor-parallel rank ``r % tp`` of stage ``r // tp``; layers are numbered anew in every stage.
    """
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    assert len(ranks) == tp * pp == config["mapping"]["world_size"]
    assert config["num_hidden_layers"] % pp == 0
    joined: Tensors = {}
    for stage in range(pp):
        first_layer = stage * (config["num_hidden_layers"] // pp)
        for name, tensor in join_stage(config, ranks[stage * tp : (stage + 1) * tp]).items():
            assert stage_is_right(name, is_first=stage == 0, is_last=stage == pp - 1), f"{name} in {stage}"
            key = shifted(name, first_layer)
            assert key not in joined, f"{key} is in two stages"
            joined[key] = tensor
    return joined


def stage_is_right(name: str, *, is_first: bool, is_last: bool) -> bool:
    """Embeddings belong to the first stage, the last norm and the head to the last."""
    return ".layers." in name or (is_first if "_embedding." in name else is_last)


def shifted(name: str, layers: int) -> str:
    """Return the name with its layer's number raised."""
    return re.sub(r"(?<=layers\.)\d+", lambda number: str(int(number[0]) + layers), name)


def join_stage(config: Config, ranks: list[Tensors]) -> Tensors:
    """Join the tensor-parallel ranks of one stage, which must hold the same names."""
    names = [name for name in ranks[0] if not any(fnmatchcase(name, pattern) for pattern in BUFFERS)]
    for tensors in ranks[1:]:
        assert tensors.keys() == ranks[0].keys()
    for tensors in ranks:
        for name in names:
            check_dtype(config, name, tensors[name])
    return {name: join_tensor(config, name, [tensors[name] for tensors in ranks]) for name in names}


def check_dtype(config: Config, name: str, tensor: Tensor) -> None:
    """Routers are float32 always, everything else is of the model's type."""
    expected = "float32" if name.endswith(".router.weight") else config["dtype"]
    assert tensor.dtype == getattr(torch, expected), f"{name} is {tensor.dtype}"


def join_tensor(config: Config, name: str, parts: list[Tensor]) -> Tensor:
    """Join one tensor over the tensor-parallel ranks, by its name."""
    if any(fnmatchcase(name, pattern) for pattern in REPLICATED):
        return equal(name, parts)
    if ".attention.qkv." in name:
        return join_qkv(config, name, parts)
    if name.endswith("vocab_embedding.weight"):
        return join_embedding(config, name, parts)
    if name == "lm_head.weight":
        return unpad(config, torch.cat(parts))
    if ".mlp." in name and parts[0].ndim == 3:
        return join_experts(config, name, parts)
    if name.endswith((".attention.dense.weight", ".proj.weight")):
        return torch.cat(parts, dim=1)
    if ".shared_expert.fc." in name or (config["hidden_act"] == "swiglu" and ".mlp.fc." in name):
        return join_halves(parts, dim=0)
    assert re.search(r"\.mlp\.(fc|gate)\.(weight|bias)$", name), f"{name} is unknown"
    return torch.cat(parts)


def equal(name: str, parts: list[Tensor]) -> Tensor:
    """Return the first of copies that must be the same on every rank."""
    assert all(torch.equal(part, parts[0]) for part in parts), f"{name} differs between ranks"
    return parts[0]


def join_qkv(config: Config, name: str, parts: list[Tensor]) -> Tensor:
    """Join the rows [Q; K; V] of every rank; with fewer KV heads than ranks, neighbours hold equal copies."""
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]
    tp = len(parts)
    assert heads % tp == 0
    q_rows, kv_rows = heads // tp * size, max(1, kv_heads // tp) * size
    split = [part.split([q_rows, kv_rows, kv_rows]) for part in parts]
    q, k, v = zip(*split, strict=True)
    copies = max(1, tp // kv_heads)
    assert tp % kv_heads == 0 if copies > 1 else kv_heads % tp == 0
    groups = [[side[i : i + copies] for i in range(0, tp, copies)] for side in (k, v)]
    joined = [equal(name, list(group)) for side in groups for group in side]
    return torch.cat([*q, *joined])


def join_embedding(config: Config, name: str, parts: list[Tensor]) -> Tensor:
    """Join the embedding: whole on every rank, or split by vocabulary (0) or by width (1).

    The Gemma classes ignore the configuration and split by vocabulary as soon as there are two ranks.
    """
    gemma = config["architecture"].startswith("Gemma")
    if len(parts) == 1 or not (gemma or config["use_parallel_embedding"]):
        return equal(name, parts)
    if config["embedding_sharding_dim"] == 1 and not gemma:
        return torch.cat(parts, dim=1)
    assert not gemma or config["vocab_size"] % len(parts) == 0
    return unpad(config, torch.cat(parts))


def unpad(config: Config, rows: Tensor) -> Tensor:
    """Cut the rows that round the vocabulary up to a multiple of the ranks; they must be zero."""
    vocab_size, tp = config["vocab_size"], config["mapping"]["tp_size"]
    assert len(rows) == -(-vocab_size // tp) * tp
    assert not rows[vocab_size:].any()
    return rows[:vocab_size]


def join_halves(parts: list[Tensor], dim: int) -> Tensor:
    """Join rows [up; gate] of every rank to one [up; gate]."""
    halves = zip(*(part.chunk(2, dim=dim) for part in parts), strict=True)
    return torch.cat([half for side in halves for half in side], dim=dim)


def join_experts(config: Config, name: str, parts: list[Tensor]) -> Tensor:
    """Join experts: rank ``r`` holds block ``r % moe_ep`` of them, and of these the slice ``r // moe_ep``."""
    moe_ep = config["mapping"].get("moe_ep_size", 1)
    assert config["mapping"].get("moe_tp_size", len(parts) // moe_ep) * moe_ep == len(parts)
    blocks = [parts[block::moe_ep] for block in range(moe_ep)]
    if name.endswith(".fc.weight"):
        return torch.cat([join_halves(block, dim=1) for block in blocks])
    assert name.endswith(".proj.weight"), f"{name} is unknown"
    return torch.cat([torch.cat(block, dim=2) for block in blocks])
