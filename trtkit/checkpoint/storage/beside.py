"""Files in which AutoGPTQ and AutoAWQ describe their quantization beside ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""The method that a file without ``quant_method`` is of."""
_BITS = ("bits", "w_bit")


def blocks_beside(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the blocks beside a ``config.json`` by the name of their file; one without bits is something else."""
    for name, method in _FILES.items():
        try:
            block = json.loads(file.with_name(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(block, dict) and any(key in block for key in _BITS):
            yield name, {"quant_method": method, **block}
