"""Checkpoints of models with heads for draft tokens: Medusa and EAGLE, as the reference converter writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.safetensors import TensorInfo
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, model_problems
from trtkit.checkpoint.trtllm_config import read_mapping
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.tensorrt.argv import flags_of, target_of
from trtkit.engine.tensorrt.heads_config import NUMBERS, config_problems
from trtkit.errors import ContractError, InputError, Problem
from trtkit.plan.types import Plan

_KEY = "engine.speculation.checkpoint"
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
    wrong = list(config_problems(config, plan, mode))
    yield from wrong
    draft = config.get("max_draft_len", NUMBERS[mode]["max_draft_len"])
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


def _medusa_problems(checkpoint: TrtllmCheckpoint, plan: Plan) -> Iterator[str]:
    """Heads are divided by rows, and live on the last stage: ``(hidden / tp, hidden)`` and ``(vocab / tp, hidden)``."""
    config, tp = {**NUMBERS["medusa"], **checkpoint.config}, checkpoint.parallelism.tp
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
    nets = checkpoint.config.get("num_eagle_layers", NUMBERS["eagle"]["num_eagle_layers"])
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
