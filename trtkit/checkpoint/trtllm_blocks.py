"""The blocks of ``config.json`` whose keys become keyword arguments: ``quantization`` and ``mapping``.

An unknown key is a TypeError in the loader, and a value of another kind is found where the engine is built, or never.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trtkit.catalog.formats import KV_CACHE
from trtkit.catalog.schemes import FOREIGN, MIXED, SCHEMES
from trtkit.errors import Problem, Severity

_Check = Callable[[Any], bool]
_AGAIN = "convert the source again"


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)) and value[0] < value[1]


def _are_patterns(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _one_of(*known: str | None) -> _Check:
    return lambda value: value is None or (isinstance(value, str) and value in known)


_QUANTIZATION: dict[str, _Check] = {
    "quant_algo": _one_of(*SCHEMES, MIXED),
    "kv_cache_quant_algo": _one_of(*KV_CACHE.values()),
    "group_size": _is_size,
    "smoothquant_val": _is_number,
    "clamp_val": _is_interval,
    # With true, some layers are left as they are; those are not what is expected of a checkpoint here.
    "use_meta_recipe": lambda value: value is False,
    "has_zero_point": _is_flag,
    "pre_quant_scale": _is_flag,
    "exclude_modules": _are_patterns,
}
_MAPPING: dict[str, _Check] = {
    "world_size": _is_size,
    "tp_size": _is_size,
    "pp_size": _is_size,
    # Ranks that share a sequence hold the same tensors: nothing here divides by them.
    "cp_size": lambda value: value == 1,
    # -1 is loaders' own word for "not divided so".
    "moe_tp_size": lambda value: _is_size(value) or value == -1,
    "moe_ep_size": lambda value: _is_size(value) or value == -1,
    "gpus_per_node": _is_size,
}
_NEWER = {
    "quantization": frozenset({"mamba_ssm_cache_dtype"}),
    "mapping": frozenset({
        "moe_cluster_size", "attn_tp_size", "attn_cp_size", "cp_config", "pp_partition", "enable_attention_dp",
        "enable_lm_head_tp_in_adp",
    }),
}  # fmt: skip
"""Keys that only the newest loaders take; older ones end in a TypeError."""


def block_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with both blocks; null stands for the default everywhere."""
    for name, checks in (("quantization", _QUANTIZATION), ("mapping", _MAPPING)):
        block = config.get(name)
        if block is None:
            continue
        if not isinstance(block, Mapping):
            yield Problem(f"is {block!r}, and has to be an object", name, _AGAIN)
            continue
        for key, value in block.items():
            yield from _key_problems(name, key, value, checks.get(key))


def _key_problems(block: str, key: str, value: Any, check: _Check | None) -> Iterator[Problem]:
    place = f"{block}.{key}"
    if key in _NEWER[block]:
        message = "only the newest versions of TensorRT-LLM take the key; others end in a TypeError"
        yield Problem(message, place, "remove the key for an older one", severity=Severity.WARNING)
    elif check is None:
        yield Problem(
            "TensorRT-LLM has no such key, and loading ends in a TypeError", place, "remove the key"
        )
    elif value is not None and not check(value):
        yield (
            _no_algorithm(value, place)
            if key == "quant_algo"
            else Problem(f"cannot be {value!r}", place, _AGAIN)
        )


def _no_algorithm(value: Any, place: str) -> Problem:
    if isinstance(value, str) and value in FOREIGN:
        return Problem(
            f"trtkit neither writes nor reads {value}", place, "convert the source to another format"
        )
    known = [*filter(None, SCHEMES), MIXED, *FOREIGN]
    near = difflib.get_close_matches(str(value), known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return Problem(f"cannot be {value!r}, which no engine has", place, f"{meant}{_AGAIN}")
