"""LoRA adapters in Hugging Face's form, checked before an engine is built for them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.positive import is_positive
from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.safetensors import TensorInfo, read_header
from trtkit.engine.tensorrt.argv import flags_of
from trtkit.errors import ContractError, InputError, Problem
from trtkit.plan.types import Plan

CONFIG, WEIGHTS, OLD_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
FILES = (CONFIG, WEIGHTS, OLD_WEIGHTS)
"""What the builder reads and copies."""
_KEY = "engine.lora.adapters"
_PEFT, _MERGE = "give a folder that peft saved", "merge the adapter into the model"
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
_PART = re.compile(r"(?:.*\blayers\.(\d+)\.)?((?:\w+\.)*)(\w+)\.lora_([AB])\.(?:\w+\.)?weight")
"""Layer's number, what the module is in, its name, and which of the two matrices."""
_MAGNITUDE = "lora_magnitude_vector"
"""Of DoRA, beside A and B."""
_VECTOR = re.compile(rf".*\.(\w+)\.{_MAGNITUDE}(?:\.\w+)*")
_DTYPES = ("float16", "bfloat16", "float32")
_STARTS = ("pissa", "olora", "corda", "loftq")
"""Ways to begin that change the model's own weights too; peft writes true for adapters that it has converted back."""


def check_adapters(folders: Sequence[Path], plan: Plan, model: ModelConfig) -> None:
    """Make sure that every adapter fits the engine; headers only.

    Raises:
        ContractError: One does not, or is not there; all problems are listed.
    """
    problems, first = [], None
    for folder in folders:
        found = list(_problems(folder, plan, model, first))
        problems += [Problem(message, _KEY, hint, str(folder)) for message, hint in found]
        first = first or (None if found else _modules_of(read_header(folder / WEIGHTS)))
    if problems:
        raise ContractError(problems)


def _problems(
    folder: Path, plan: Plan, model: ModelConfig, first: frozenset[str] | None
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with fixes; ``first`` are the modules of the first adapter, where the contract has none."""
    if not folder.is_dir():
        yield "there is no such folder", "paths in a contract are relative to it"
        return
    if not (folder / WEIGHTS).is_file():
        hint = f"save {OLD_WEIGHTS} anew with peft" if (folder / OLD_WEIGHTS).is_file() else _PEFT
        yield f"there is no {WEIGHTS}", hint
        return
    try:
        config, tensors = read_json(folder / CONFIG), read_header(folder / WEIGHTS)
    except InputError as error:
        yield error.message, _PEFT
        return
    yield from _rank_problems(config, tensors, int(str(flags_of(plan).get("max_lora_rank", 64))))
    yield from _kind_problems(config, tensors, plan)
    yield from _module_problems(_modules_of(tensors), plan, first)
    if first is None and "lora_target_modules" not in flags_of(plan):
        yield from _target_problems(config.get("target_modules"), _modules_of(tensors))
    yield from _tensor_problems(tensors, model)
    yield from _lost(config, tensors, model)


def _rank_problems(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], most: int
) -> Iterator[tuple[str, str]]:
    rank, own = config.get("r"), config.get("rank_pattern")
    found = {info.shape[0] for name, info in tensors.items() if ".lora_A." in name and info.shape}
    largest = max(found, default=0)
    if type(rank) is not int or rank < 1:
        yield f"says no rank: r is {rank!r}", f"write the rank of its matrices in {CONFIG}"
    elif own:
        yield "has ranks of its own for some layers (rank_pattern), which engines scale by r", _MERGE
    elif other := sorted(found - {rank}):
        yield f"has matrices of rank {other[0]}, and r is {rank}, by which engines scale", _PEFT
    if largest > most:
        yield f"has rank {largest}, engine.lora.max_rank is {most}", f"set engine.lora.max_rank to {largest}"


def _kind_problems(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], plan: Plan
) -> Iterator[tuple[str, str]]:
    """Yield what the runtime would leave out: it reads ``r``, ``lora_alpha`` and ``use_rslora``, and two matrices."""
    if config.get("peft_type") not in (None, "LORA"):
        yield f"is of kind {config['peft_type']}, not LoRA", "use another adapter"
    if not _modules_of(tensors):
        yield f"has no matrix of an adapter in {WEIGHTS}", _PEFT
    is_dora = config.get("use_dora") or any(_MAGNITUDE in name for name in tensors)
    if is_dora and flags_of(plan).get("dora_plugin") != "enable":
        yield "is a DoRA adapter", "set engine.build_flags.dora_plugin to enable"
    alpha = config.get("lora_alpha")
    if not is_positive(alpha):
        yield f"says no scale: lora_alpha is {alpha!r}", f"write the number it was trained with in {CONFIG}"
    if type(config.get("use_rslora", False)) is not bool:
        yield f"use_rslora is {config['use_rslora']!r}", f"write true or false in {CONFIG}"
    if config.get("alpha_pattern"):
        yield "has scales of its own for some layers (alpha_pattern), which engines do not read", _MERGE
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_STARTS):
        message = (
            f"is beside a model whose weights its start took something from (init_lora_weights: {start})"
        )
        yield message, "save it with path_initial_model_for_weight_conversion, or merge it into that model"
    if config.get("bias") not in (None, "none"):
        yield f"brings biases (bias: {config['bias']}), which engines have no place for", _MERGE
    if whole := config.get("modules_to_save"):
        names = ", ".join(map(str, whole if isinstance(whole, list) else [whole]))
        message = (
            f"brings whole layers ({names}), with which the first adapter replaces the model's own for all"
        )
        yield message, _MERGE


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


def _target_problems(targets: object, modules: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield why the builder cannot take the engine's layers from the first adapter: it reads its ``target_modules``."""
    fix = f"set engine.lora.modules to [{', '.join(sorted(modules))}]"
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        yield f"target_modules is {targets!r}, no list from which the builder takes the engine's layers", fix
        return
    # Only whole names are known to it, not paths of layers.
    named = {_MODULES.get(each, each) for each in targets}
    if lost := sorted(modules - named):
        yield f"changes {', '.join(lost)}, which its target_modules do not name for the builder", fix


def _tensor_problems(tensors: Mapping[str, TensorInfo], model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield tensors that are not of this model, one of each kind: a number of layers or a width is wrong in all."""
    sizes, told = _sizes(model), set()
    for name, info in sorted(tensors.items()):
        found = _PART.fullmatch(name)
        module = _module(found) if found else ""
        if vector := _VECTOR.fullmatch(name):
            rows = sizes.get(_MODULES.get(vector[1], ""), (0, 0))[0]
            kind = (
                ""
                if rows in (0, math.prod(info.shape))
                else f"is {list(info.shape)}, the layer has {rows} rows"
            )
        elif found is None:
            kind = "is no matrix of an adapter, and nothing would read it"
        elif module not in sizes:
            kind = ""  # told by its module already
        elif info.dtype not in _DTYPES:
            kind = f"is {info.dtype}, and engines take {', '.join(_DTYPES)}"
        elif found[1] is None or int(found[1]) >= model.num_layers:
            kind = f"is of no layer that the model has: there are {model.num_layers}"
        else:
            kind = _misfit(name, info, tensors, sizes[module])
        if kind and (module, kind) not in told:
            told.add((module, kind))
            yield f"{name} {kind}", "give an adapter that was trained on this model"


def _lost(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], model: ModelConfig
) -> Iterator[tuple[str, str]]:
    """Yield matrices that others make miss: peft changes a module in every layer, or in those that it names."""
    layers = config.get("layers_to_transform")
    layers = [layers] if type(layers) is int else layers or range(model.num_layers)
    if not isinstance(layers, list | range) or not all(type(each) is int for each in layers):
        yield f"layers_to_transform is {layers!r}", f"write numbers of layers in {CONFIG}"
        return
    parts = [found for name in tensors if (found := _PART.fullmatch(name)) and found[1] is not None]
    there = {(int(found[1]), _module(found)) for found in parts}
    for module in sorted({module for _, module in there}):
        gone = [str(layer) for layer in layers if (layer, module) not in there]
        if gone:
            message = f"has no {module} of layer {', '.join(gone[:4])}{' and more' if len(gone) > 4 else ''}"
            yield f"{message}, and of others it has", _PEFT


def _misfit(name: str, info: TensorInfo, tensors: Mapping[str, TensorInfo], sizes: tuple[int, int]) -> str:
    """Return why a matrix does not fit its layer, which has ``sizes`` outputs and inputs: A is [rank, in]."""
    rows, columns = sizes
    is_first = ".lora_A." in name
    other = tensors.get(name.replace(*((".lora_A.", ".lora_B.") if is_first else (".lora_B.", ".lora_A."))))
    if other is None:
        return f"has no {'lora_B' if is_first else 'lora_A'} beside it"
    if len(info.shape) != 2 or len(other.shape) != 2:
        return f"has shape {list(info.shape)}, where a matrix is due"
    wanted = (info.shape[0], columns) if is_first else (rows, other.shape[0])
    return "" if info.shape == wanted else f"is {list(info.shape)}, the model's layer takes {list(wanted)}"


def _sizes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of the layers that adapters may change, all ranks together."""
    query, key = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    hidden, inner = model.hidden_size, model.intermediate_size
    return {
        "attn_q": (query, hidden),
        "attn_k": (key, hidden),
        "attn_v": (key, hidden),
        "attn_qkv": (query + 2 * key, hidden),
        "attn_dense": (hidden, query),
        "mlp_h_to_4h": (inner, hidden),
        "mlp_gate": (inner, hidden),
        "mlp_4h_to_h": (hidden, inner),
    }


def _modules_of(tensors: Mapping[str, TensorInfo]) -> frozenset[str]:
    """Return the layers that have tensors, by TensorRT-LLM's names where they have one."""
    return frozenset(_module(found) for name in tensors if (found := _PART.fullmatch(name)))


def _module(found: re.Match[str]) -> str:
    """Return TensorRT-LLM's name; experts have layers of the same name, which are others."""
    name = found[3]
    return f"{found[2]}{name}" if "expert" in found[2] else _MODULES.get(name, name)
