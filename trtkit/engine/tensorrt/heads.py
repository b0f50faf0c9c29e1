"""Checkpoints of models with heads for draft tokens: Medusa and EAGLE, as the reference converter writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.safetensors import TensorInfo, read_header
from trtkit.checkpoint.trtllm_config import read_mapping
from trtkit.conventions import CHECKPOINT_CONFIG, rank_file
from trtkit.engine.tensorrt.argv import flags_of, target_of
from trtkit.errors import ContractError, InputError, Problem
from trtkit.plan.types import Plan

_KEY = "engine.speculation.checkpoint"
_CLASSES = {
    "medusa": ("MedusaForCausalLM", "MedusaLlamaForCausalLM"),
    "eagle": ("EagleForCausalLM",),
}
_FIELDS = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
}
"""Keys that say whether it is the contract's model."""
_DEFAULT_DRAFT = 63
"""What both classes take where ``max_draft_len`` is left out."""
_HINT = "convert model and heads with the release line that builds, for the contract's ranks and formats"


def check_heads(folder: Path, plan: Plan) -> None:
    """Make sure that a checkpoint is of the plan's model, ranks and formats, and has the heads of its mode.

    Raises:
        ContractError: It is not; all problems are listed.
    """
    try:
        problems = list(_problems(folder, plan))
    except InputError as error:
        problems = [error.message]
    if problems:
        raise ContractError([Problem(message, _KEY, _HINT, str(folder)) for message in problems])


def _problems(folder: Path, plan: Plan) -> Iterator[str]:
    config, flags = read_json(folder / CHECKPOINT_CONFIG), flags_of(plan)
    mode = str(flags["speculative_decoding_mode"])
    wrong = list(_config_problems(config, plan, mode))
    yield from wrong
    draft = config.get("max_draft_len", _DEFAULT_DRAFT)
    if draft != flags["max_draft_len"]:
        yield f"is for {draft} draft tokens, the contract says {flags['max_draft_len']}"
    ranks = read_mapping(config, path=folder / CHECKPOINT_CONFIG)
    wanted = target_of(plan).ranks
    if (ranks.tp, ranks.pp) != (wanted.tp, wanted.pp):
        yield f"is for tensor {ranks.tp} x pipeline {ranks.pp}, the contract says {wanted.tp} x {wanted.pp}"
        return
    if wrong:
        return
    headers = [read_header(folder / rank_file(rank)) for rank in range(ranks.world)]
    find = _medusa_problems if mode == "medusa" else _eagle_problems
    yield from find(config, headers, ranks.tp)


def _config_problems(config: Mapping[str, Any], plan: Plan, mode: str) -> Iterator[str]:
    name, model = config.get("architecture"), plan.model
    if name is None:
        yield f"is no TensorRT-LLM checkpoint: {CHECKPOINT_CONFIG} names no architecture"
        return
    if name not in _CLASSES[mode]:
        yield f"is a {name}, not a {_CLASSES[mode][0]}"
    for key, field in _FIELDS.items():
        if config.get(key) != getattr(model, field):
            yield f"{key} is {config.get(key)!r}, the model has {getattr(model, field)}"
    is_qwen = "qwen" in str(config.get("model_type", "")).lower()
    if mode == "medusa" and is_qwen != model.architecture.startswith("Qwen"):
        base = "Qwen" if is_qwen else "Llama"
        yield f"model_type {config.get('model_type')!r} makes the builder take a {base} for {model.architecture}"
    if mode == "eagle" and not isinstance(config.get("eagle_net_config"), Mapping):
        yield "eagle_net_config, the whole configuration of a head, is missing"
    block = config.get("quantization") or {}
    for key in ("quant_algo", "kv_cache_quant_algo"):
        if block.get(key) != getattr(plan.quantization, key):
            yield f"quantization.{key} is {block.get(key)}, the contract says {getattr(plan.quantization, key)}"
    if config.get("dtype") != plan.dtype:
        yield f"dtype is {config.get('dtype')}, the contract says {plan.dtype}"


def _medusa_problems(
    config: Mapping[str, Any], headers: Sequence[Mapping[str, TensorInfo]], tp: int
) -> Iterator[str]:
    """Heads are divided by rows, and live on the last stage: ``(hidden / tp, hidden)`` and ``(vocab / tp, hidden)``."""
    hidden, vocab = config["hidden_size"], -(-config["vocab_size"] // tp)
    wanted: dict[str, tuple[int, ...]] = {}
    for head in range(config.get("num_medusa_heads", 4)):
        for layer in range(config.get("num_medusa_layers", 1)):
            linear = f"medusa_heads.{head}.medusa_layers.{layer}.linear"
            wanted |= {f"{linear}.weight": (hidden // tp, hidden), f"{linear}.bias": (hidden // tp,)}
        wanted[f"medusa_heads.{head}.lm_head.weight"] = (vocab, hidden)
    for rank, header in list(enumerate(headers))[-tp:]:
        for name, shape in wanted.items():
            if name not in header:
                yield f"rank {rank} has no {name}"
            elif header[name].shape != shape:
                yield f"{name} of rank {rank} has shape {list(header[name].shape)}, not {list(shape)}"


def _eagle_problems(
    config: Mapping[str, Any], headers: Sequence[Mapping[str, TensorInfo]], _: int
) -> Iterator[str]:
    names = {name for header in headers for name in header}
    for net in range(config.get("num_eagle_layers", 1)):
        if not any(name.startswith(f"eagle_nets.{net}.") for name in names):
            yield f"there is no tensor of eagle_nets.{net}"
