"""One text that stands for the weights of a model, whatever files they are in."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.mapping import MappedTensor

EXCERPT = "excerpt_sha256"
NUMERICS = "numerics"
"""Keys of what a file of ranges says of itself."""
_CHUNK_BYTES = 1 << 16
_ROWS = 64
"""Of each table that are read: a sibling that was trained on has changed all of them."""


def weights_digest(mapped: Sequence[MappedTensor]) -> str:
    """Return the SHA-256 of names, types, shapes and elements; reads all of them."""
    sources = {info.name: info for tensor in mapped for info in tensor.plain}
    digest = hashlib.sha256()
    for name in sorted(sources):
        info = sources[name]
        digest.update(f"{name}\0{info.dtype}\0{info.shape}\0".encode())
        for chunk in info.chunks():
            digest.update(chunk.view(np.uint8).data)
    return digest.hexdigest()


def excerpt_digest(mapped: Sequence[MappedTensor]) -> str:
    """Return the SHA-256 of norms, biases, some rows of tables and one of each matrix, as bfloat16 has them.

    What is around linear layers decides about activations as much as they do, and whoever saves a model in another
    type keeps so much. Reads a few MB of a model of 8 billion weights.
    """
    sources = {
        info.name: (info, tensor.target.layer is None)
        for tensor in mapped
        if tensor.is_plain
        for info in tensor.plain
    }
    digest = hashlib.sha256()
    for name in sorted(sources):
        info, is_table = sources[name]
        digest.update(f"{name}\0{info.shape}\0".encode())
        for block in info.rows(_places(info.shape, is_table=is_table), chunk_bytes=_CHUNK_BYTES):
            digest.update(block.astype(np.float32).astype(ml_dtypes.bfloat16).tobytes())
    return digest.hexdigest()


def _places(shape: Sequence[int], *, is_table: bool) -> Sequence[range]:
    """Return the rows to read: all of a vector's."""
    if len(shape) == 1:
        return [range(shape[0])]
    count = math.prod(shape[:-1])
    rows = range(0, count, -(-count // _ROWS)) if is_table else (count // 2,)
    return [range(row, row + 1) for row in rows]


def numerics(config: ModelConfig) -> Mapping[str, Any]:
    """Return what of a config decides about activations beside the weights, as JSON has it."""
    found = {
        "norm_epsilon": config.norm_epsilon,
        "rotary_base": config.rotary_base,
        "rotary_pct": config.rotary_pct,
        "rotary_scaling": config.rotary_scaling,
        **config.numerics,
    }
    kept: Mapping[str, Any] = json.loads(json.dumps(found, default=str))
    return kept
