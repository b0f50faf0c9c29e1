"""What a checkpoint needs of a machine, from its descriptions; whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checkpoint.storage import find_storage
from trtkit.checkpoint.storage.quantized import Quantized
from trtkit.checkpoint.trtllm_config import read_mapping
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.errors import ContractError, InputError, Problem, Severity
from trtkit.flow.inspect.description import read_description
from trtkit.plan.hf_config import parse_hf_config

_QUANT_CONFIG = "hf_quant_config.json"
_LAYERS, _MIXED = "quant_cfg.json", "MIXED_PRECISION"
_KV_ALGORITHMS = {"int8": "INT8", "fp8": "FP8"}


@dataclass(frozen=True)
class Needs:
    """A model and its formats; None for what the folder does not say."""

    architecture: str | None = None
    head_size: int | None = None
    dtype: str | None = None
    """Of what is computed; None where a conversion still chooses it."""
    algorithms: tuple[str | None, ...] = (None,)
    """``quant_algo`` of the weights, of layers of their own each; None for plain ones."""
    kv_cache: str | None = None
    """``kv_cache_quant_algo``."""
    rope: str | None = None
    ranks: int = 1
    baked: Mapping[str, Any] | None = None
    """What trtkit says of a layout that is one GPU family's."""
    problems: tuple[Problem, ...] = ()


def needs_of_checkpoint(folder: Path) -> Needs:
    """Return the needs of a TensorRT-LLM checkpoint."""
    path = folder / CHECKPOINT_CONFIG
    config, problems = read_description(path)
    quantization, scaling = _table(config, "quantization"), _table(config, "rotary_scaling")
    algorithm = _text(quantization.get("quant_algo"))
    algorithms, more = _of_layers(folder) if algorithm == _MIXED else ((algorithm,), [])
    try:
        ranks = read_mapping(config, path=path).world
    except InputError:  # verification tells
        ranks = 1
    size = config.get("head_size") or _head_size(config)
    return Needs(
        architecture=_text(config.get("architecture")),
        head_size=size if type(size) is int else None,
        dtype=_text(config.get("dtype")),
        algorithms=algorithms,
        kv_cache=_text(quantization.get("kv_cache_quant_algo")),
        rope=_text(scaling.get("type") or scaling.get("rope_type")),
        ranks=ranks,
        baked=_table(config, "trtkit"),
        problems=(*problems, *more),
    )


def needs_of_source(folder: Path) -> Needs:
    """Return the needs of a Hugging Face folder, as far as what is in it cannot be converted into something else."""
    path = folder / CHECKPOINT_CONFIG
    config, problems = read_description(path)
    names = config.get("architectures")
    needs = Needs(architecture=_text(names[0]) if isinstance(names, list) and names else None)
    try:
        model, _ = parse_hf_config(config, file=str(path))
        scaling = (model.rotary_scaling or {}).get("type")
        needs = Needs(architecture=model.architecture, head_size=model.head_size, rope=_text(scaling))
        extra = folder / _QUANT_CONFIG
        storage = find_storage(
            config, read_description(extra)[0] if extra.is_file() else None, file=str(path)
        )
    except InputError as error:
        told = (
            error.problems if isinstance(error, ContractError) else [Problem(error.message, file=str(path))]
        )
        unread = [
            Problem(
                f"not compared: {each.message}", each.key, each.hint, str(path), severity=Severity.WARNING
            )
            for each in told
        ]
        return Needs(needs.architecture, needs.head_size, algorithms=(), problems=(*problems, *unread))
    if not isinstance(storage, Quantized):
        return needs
    kv_cache = _KV_ALGORITHMS.get(storage.kv_cache)
    return Needs(
        needs.architecture,
        needs.head_size,
        algorithms=(storage.quant_algo,),
        kv_cache=kv_cache,
        rope=needs.rope,
        problems=tuple(problems),
    )


def _of_layers(folder: Path) -> tuple[tuple[str | None, ...], list[Problem]]:
    """Return the formats of a checkpoint whose layers have one each."""
    path = folder / _LAYERS
    content, problems = read_description(path)
    layers = content.get("quantized_layers")
    if not isinstance(layers, Mapping) or not layers:
        hint = f"{_LAYERS} says which layer has which format: take it from who wrote the checkpoint"
        return (), problems or [Problem("quantized_layers is missing", file=str(path), hint=hint)]
    found = {_text(each.get("quant_algo")) for each in layers.values() if isinstance(each, Mapping)}
    return tuple(sorted(found, key=str)), problems


def _head_size(config: Mapping[str, Any]) -> int | None:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return hidden // heads if type(hidden) is int and type(heads) is int and heads > 0 else None


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
