"""LoRA adapters in Hugging Face's form, checked before an engine is built for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.safetensors import TensorInfo, read_header
from trtkit.engine.tensorrt.argv import flags_of
from trtkit.errors import ContractError, InputError, Problem
from trtkit.plan.types import Plan

CONFIG, WEIGHTS, OLD_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
FILES = (CONFIG, WEIGHTS, OLD_WEIGHTS)
"""What the builder reads and copies."""
_KEY = "engine.lora.adapters"
_MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate",
    "down_proj": "mlp_4h_to_h",
}
"""Hugging Face's name of a layer to TensorRT-LLM's."""
_A = re.compile(r"\.(\w+)\.lora_A\.(?:\w+\.)?weight$")


def check_adapters(folders: Sequence[Path], plan: Plan) -> None:
    """Make sure that every adapter fits the engine; headers only.

    Raises:
        ContractError: One does not, or is not there; all problems are listed.
    """
    problems, first = [], None
    for folder in folders:
        found = list(_problems(folder, plan, first))
        problems += [Problem(message, _KEY, hint, str(folder)) for message, hint in found]
        first = first or (None if found else _modules_of(folder))
    if problems:
        raise ContractError(problems)


def _problems(folder: Path, plan: Plan, first: frozenset[str] | None) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with fixes; ``first`` are the modules of the first adapter, where the contract has none."""
    if not folder.is_dir():
        yield "there is no such folder", "paths in a contract are relative to it"
        return
    try:
        config, tensors = read_json(folder / CONFIG), _tensors(folder)
    except InputError as error:
        yield error.message, "give a folder that peft saved"
        return
    if tensors is None and not (folder / OLD_WEIGHTS).is_file():
        yield f"there is neither {WEIGHTS} nor {OLD_WEIGHTS}", "give a folder that peft saved"
    yield from _rank_problems(config, tensors or {}, int(str(flags_of(plan).get("max_lora_rank", 64))))
    yield from _kind_problems(config, plan)
    yield from _module_problems(_modules_of(folder), plan, first)


def _rank_problems(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], most: int
) -> Iterator[tuple[str, str]]:
    pattern = config.get("rank_pattern")
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, Mapping) else ())]
    ranks += [info.shape[0] for name, info in tensors.items() if _A.search(name)]
    largest = max((rank for rank in ranks if type(rank) is int), default=0)
    if largest == 0:
        yield "says no rank", f"r is missing in {CONFIG}"
    if largest > most:
        yield f"has rank {largest}, engine.lora.max_rank is {most}", f"set engine.lora.max_rank to {largest}"


def _kind_problems(config: Mapping[str, Any], plan: Plan) -> Iterator[tuple[str, str]]:
    if config.get("peft_type") not in (None, "LORA"):
        yield f"is of kind {config['peft_type']}, not LoRA", "use another adapter"
    if config.get("use_dora") and flags_of(plan).get("dora_plugin") != "enable":
        yield "is a DoRA adapter", "set engine.build_flags.dora_plugin to enable"
    if config.get("modules_to_save"):
        names = ", ".join(map(str, config["modules_to_save"]))
        message = (
            f"brings whole layers ({names}), with which the first adapter replaces the model's own for all"
        )
        yield message, "merge them into the model"


def _module_problems(
    modules: frozenset[str], plan: Plan, first: frozenset[str] | None
) -> Iterator[tuple[str, str]]:
    unknown = sorted(name for name in modules if name not in _MODULES.values())
    if unknown:
        yield f"changes {', '.join(unknown)}, which engines have no adapters for", "train another adapter"
    named = frozenset(str(flags_of(plan).get("lora_target_modules", "")).split()) or first
    if named is not None and not unknown and (extra := sorted(modules - named)):
        hint = f"add {', '.join(extra)} to engine.lora.modules"
        yield f"changes {', '.join(extra)}, which the engine is not built for", hint


def _modules_of(folder: Path) -> frozenset[str]:
    """Return the layers by TensorRT-LLM's names where they have one: those with tensors, else those that are listed."""
    tensors = _tensors(folder)
    listed = read_json(folder / CONFIG).get("target_modules")
    names = {found[1] for name in tensors or () if (found := _A.search(name))}
    names = names or (set(map(str, listed)) if isinstance(listed, list) else set())
    return frozenset(_MODULES.get(name.rpartition(".")[2], name) for name in names)


def _tensors(folder: Path) -> Mapping[str, TensorInfo] | None:
    return read_header(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else None
