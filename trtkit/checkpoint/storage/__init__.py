"""How sources keep their linear layers: plain, or quantized by one of the tools in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtkit.checkpoint.storage.storage import PLAIN, Storage
from trtkit.errors import ContractError, Problem

_KEYS = ("quantization_config", "compression_config", "quantization")
METHODS: dict[str, Callable[[Mapping[str, Any]], Storage]] = {}
"""By ``quant_method``; each takes the block of ``config.json`` and raises ``ValueError`` with what it cannot take."""


def find_storage(config: Mapping[str, Any], quant_config: Mapping[str, Any] | None, *, file: str) -> Storage:
    """Return how a checkpoint is stored, from ``config.json`` and ``hf_quant_config.json`` (None when absent).

    Raises:
        ContractError: It is quantized in a way that cannot be read.
    """
    blocks = {key: config[key] for key in _KEYS if config.get(key) is not None}
    if not blocks and quant_config is None:
        return PLAIN
    key, block = next(iter(blocks.items()), ("quantization", (quant_config or {}).get("quantization")))
    method = block.get("quant_method", "modelopt") if isinstance(block, Mapping) else block
    known = f"known: {', '.join(METHODS)}" if METHODS else "give the checkpoint it was made from"
    if not isinstance(block, Mapping) or method not in METHODS:
        raise ContractError(
            [Problem(f"the checkpoint is quantized by {method!r}", key=key, hint=known, file=file)]
        )
    try:
        return METHODS[method](block)
    except ValueError as error:
        hint = "give the checkpoint that it was quantized from"
        raise ContractError([Problem(str(error), key=key, hint=hint, file=file)]) from error
