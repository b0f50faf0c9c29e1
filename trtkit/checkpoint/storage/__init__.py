"""How sources keep their linear layers: plain, or quantized by one of the tools in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit.checkpoint.storage.autofp8 import read_fp8
from trtkit.checkpoint.storage.awq import read_awq
from trtkit.checkpoint.storage.beside import blocks_beside
from trtkit.checkpoint.storage.compressed_tensors import read_compressed_tensors
from trtkit.checkpoint.storage.fbgemm import read_fbgemm
from trtkit.checkpoint.storage.gptq import read_gptq
from trtkit.checkpoint.storage.known import KNOWN, unknown_keys
from trtkit.checkpoint.storage.modelopt import read_modelopt
from trtkit.checkpoint.storage.quantized import Quantized
from trtkit.checkpoint.storage.storage import PLAIN, Storage
from trtkit.errors import ContractError, Problem

_KEYS = ("quantization_config", "compression_config", "quantization")
_HF_QUANT_CONFIG = "hf_quant_config.json"
_ORIGINAL = "give the checkpoint that it was quantized from"
METHODS: dict[str, Callable[[Mapping[str, Any]], Quantized]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": read_fbgemm,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "modelopt": read_modelopt,
}
"""By ``quant_method``; each takes the block of ``config.json`` and raises ``ValueError`` with what it cannot take."""


def find_storage(config: Mapping[str, Any], quant_config: Mapping[str, Any] | None, *, file: str) -> Storage:
    """Return how a checkpoint is stored, from ``config.json`` and ``hf_quant_config.json`` (None when absent).

    Raises:
        ContractError: It is quantized in a way that cannot be read, or the two contradict each other.
    """
    blocks = {key: config[key] for key in _KEYS if config.get(key) is not None}
    if quant_config is not None:
        blocks[_HF_QUANT_CONFIG] = quant_config.get("quantization")
    beside = dict(blocks_beside(Path(file)))
    if beside and not blocks:
        name, block = next(iter(beside.items()))
        message = f"says that the model is quantized by {block['quant_method']}, and config.json does not"
        hint = f"put it into config.json as quantization_config, with quant_method {block['quant_method']!r}"
        hint += "; or remove it if the weights are plain"
        raise ContractError([Problem(message, key=name, hint=hint, file=file)])
    found = {key: _read(key, block, file) for key, block in (blocks | beside).items()}
    first, *others = found or [""]
    for other in others:
        if _meaning(found[other]) != _meaning(found[first]):
            message = f"contradicts {first}: {_meaning(found[other])} and {_meaning(found[first])}"
            raise ContractError([Problem(message, key=other, hint="remove the wrong one", file=file)])
    unknown = dict.fromkeys(key for each in found.values() for key in each.unknown)
    return replace(found[first], unknown=tuple(unknown)) if found else PLAIN


def _read(key: str, block: Any, file: str) -> Quantized:
    method = block.get("quant_method") if isinstance(block, Mapping) else block
    if isinstance(block, Mapping) and method is None and "quant_algo" in block:
        method = "modelopt"
    if not isinstance(block, Mapping) or not isinstance(method, str) or method not in METHODS:
        hint = f"known: {', '.join(METHODS)}; or {_ORIGINAL}"
        message = f"the checkpoint is quantized by {method!r}"
        raise ContractError([Problem(message, key=key, hint=hint, file=file)])
    try:
        storage = METHODS[method](block)
    except ValueError as error:
        raise ContractError([Problem(str(error), key=key, hint=_ORIGINAL, file=file)]) from error
    return replace(storage, unknown=tuple(unknown_keys(block, KNOWN[method])))


def _meaning(storage: Quantized) -> str:
    groups = f", groups of {storage.group_size}" if storage.group_size else ""
    zeros = " with zero points" if storage.has_zero_point else ""
    packing = f", packed by {storage.packing}" if storage.packing else ""
    return f"{storage.quant_algo}{zeros}{groups}{packing}, KV cache {storage.kv_cache}"
