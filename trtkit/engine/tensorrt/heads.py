"""Checkpoints of models with heads for draft tokens: Medusa and EAGLE, as the reference converter writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.json_object import section
from trtkit.checkpoint.safetensors import TensorInfo
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, model_problems
from trtkit.checkpoint.trtllm_config import read_mapping
from trtkit.conventions import CHECKPOINT_CONFIG
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
_NUMBERS = {
    "medusa": {"num_medusa_heads": 4, "num_medusa_layers": 1, "max_draft_len": 63},
    "eagle": {"num_eagle_layers": 1, "max_non_leaves_per_layer": 10, "max_draft_len": 63},
}
"""Counts, and what the classes take where one is left out."""
_MOST = 4096
_QUANTIZED = ("float8_e4m3fn", "int8")
"""Types of heads that were quantized with the model."""
_FP8_SCALES = ("weights_scaling_factor", "activation_scaling_factor")
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
    wrong = [*_config_problems(config, plan, mode), *_number_problems(config, mode)]
    yield from wrong
    draft = config.get("max_draft_len", _NUMBERS[mode]["max_draft_len"])
    if draft != flags["max_draft_len"]:
        yield f"is for {draft} draft tokens, the contract says {flags['max_draft_len']}"
    ranks = read_mapping(config, path=folder / CHECKPOINT_CONFIG)
    wanted = target_of(plan).ranks
    if (ranks.tp, ranks.pp) != (wanted.tp, wanted.pp):
        yield f"is for tensor {ranks.tp} x pipeline {ranks.pp}, the contract says {wanted.tp} x {wanted.pp}"
        return
    if wrong:
        return
    checkpoint = TrtllmCheckpoint.open(folder, config)
    for each in model_problems(checkpoint, replace(plan.model, dtype=plan.dtype)):
        yield f"{Path(each.file).name} {each.key}: {each.message}"
    find = _medusa_problems if mode == "medusa" else _eagle_problems
    yield from find(checkpoint, plan)


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
    if mode == "eagle":
        yield from _net_problems(config.get("eagle_net_config"), plan)
    block = section(config, "quantization")
    for key in ("quant_algo", "kv_cache_quant_algo"):
        if block.get(key) != getattr(plan.quantization, key):
            yield f"quantization.{key} is {block.get(key)}, the contract says {getattr(plan.quantization, key)}"
    if config.get("dtype") != plan.dtype:
        yield f"dtype is {config.get('dtype')}, the contract says {plan.dtype}"


def _net_problems(net: object, plan: Plan) -> Iterator[str]:
    """A net reads the model's hidden states and writes its vocabulary; its layers and heads are its own."""
    if not isinstance(net, Mapping):
        yield "eagle_net_config, the whole configuration of a head, is missing"
        return
    for key in ("hidden_size", "vocab_size"):
        if net.get(key) != getattr(plan.model, key):
            yield f"eagle_net_config.{key} is {net.get(key)!r}, the model has {getattr(plan.model, key)}"
    for key in ("num_hidden_layers", "num_attention_heads", "intermediate_size"):
        if not _counts(net.get(key)):
            yield f"eagle_net_config.{key} is {net.get(key)!r}, and has to be a positive whole number"
    if net.get("dtype", plan.dtype) != plan.dtype:
        yield f"eagle_net_config.dtype is {net['dtype']!r}, the contract says {plan.dtype}"


def _number_problems(config: Mapping[str, Any], mode: str) -> Iterator[str]:
    for key, usual in _NUMBERS[mode].items():
        value = config.get(key, usual)
        if not _counts(value):
            yield f"{key} is {value!r}, and has to be a positive whole number"
        elif value > _MOST:
            yield f"{key} is {value}, and {_MOST} is more than any model has"


def _counts(value: object) -> bool:
    return type(value) is int and value > 0


def _medusa_problems(checkpoint: TrtllmCheckpoint, plan: Plan) -> Iterator[str]:
    """Heads are divided by rows, and live on the last stage: ``(hidden / tp, hidden)`` and ``(vocab / tp, hidden)``."""
    config, tp = {**_NUMBERS["medusa"], **checkpoint.config}, checkpoint.parallelism.tp
    heads = config["num_medusa_heads"]
    hidden, vocab = config["hidden_size"], -(-config["vocab_size"] // tp)
    wanted: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for layer in range(config["num_medusa_layers"]):
            linear = f"medusa_heads.{head}.medusa_layers.{layer}.linear"
            wanted |= {f"{linear}.weight": (hidden // tp, hidden), f"{linear}.bias": (hidden // tp,)}
        wanted[f"medusa_heads.{head}.lm_head.weight"] = (vocab, hidden)
    for rank, header in list(enumerate(checkpoint.ranks))[-tp:]:
        for name, shape in wanted.items():
            info = header.get(name)
            if info is None:
                yield f"rank {rank} has no {name}"
            elif info.shape != shape:
                yield f"{name} of rank {rank} has shape {list(info.shape)}, not {list(shape)}"
            elif problem := _type_problem(name, header, plan):
                yield f"{name} of rank {rank} {problem}"
    yield from _spare(checkpoint, "medusa_heads", "num_medusa_heads", heads)
    deepest = max(map(len, plan.target.choices or ()), default=0) if plan.target else 0
    if deepest > heads:
        yield f"has {heads} heads, and engine.speculation.choices has a path of {deepest}"


def _type_problem(name: str, header: Mapping[str, TensorInfo], plan: Plan) -> str:
    """Return why a tensor of a head has the wrong type; layers of FP8 bring the two scales of their own."""
    dtype, algo = header[name].dtype, plan.quantization.quant_algo
    if dtype == plan.dtype:
        return ""
    if algo is None or dtype not in _QUANTIZED or not name.endswith(".weight"):
        return f"is {dtype}, dtype is {plan.dtype}"
    scales = [f"{name.removesuffix('weight')}{scale}" for scale in (_FP8_SCALES if algo == "FP8" else ())]
    lost = [each for each in scales if each not in header]
    return f"is {dtype}, and there is no {lost[0]}" if lost else ""


def _eagle_problems(checkpoint: TrtllmCheckpoint, plan: Plan) -> Iterator[str]:
    nets = checkpoint.config.get("num_eagle_layers", _NUMBERS["eagle"]["num_eagle_layers"])
    tensors = {name: info for header in checkpoint.ranks for name, info in header.items()}
    for net in range(nets):
        own = {name: info for name, info in tensors.items() if name.startswith(f"eagle_nets.{net}.")}
        if not own:
            yield f"there is no tensor of eagle_nets.{net}"
        for name, info in own.items():
            if info.dtype.startswith(("bfloat", "float16", "float32")) and info.dtype not in (
                plan.dtype,
                "float32",
            ):
                yield f"{name} is {info.dtype}, dtype is {plan.dtype}"
    yield from _spare(checkpoint, "eagle_nets", "num_eagle_layers", nets)


def _spare(checkpoint: TrtllmCheckpoint, prefix: str, key: str, count: int) -> Iterator[str]:
    """Name heads that the builder would leave out."""
    parts = (
        name.split(".") for header in checkpoint.ranks for name in header if name.startswith(f"{prefix}.")
    )
    spare = sorted({int(part[1]) for part in parts if part[1].isdecimal() and int(part[1]) >= count})
    if spare:
        yield f"holds {prefix}.{spare[0]}, and {key} is {count}"
