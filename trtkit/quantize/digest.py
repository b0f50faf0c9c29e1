"""One text that stands for the weights of a model, whatever files they are in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from trtkit.checkpoint.mapping import MappedTensor

SURROUNDINGS = "surroundings_sha256"
"""Key of what a file of ranges says of itself."""
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


def surroundings_digest(mapped: Sequence[MappedTensor]) -> str:
    """Return the SHA-256 of norms, biases and some rows of tables, as bfloat16 has them: what is around linear layers.

    They decide about activations as much as the matrices do, and whoever saves a model in another type keeps so much.
    """
    sources = {
        info.name: info
        for tensor in mapped
        if tensor.is_plain
        for info in tensor.plain
        if tensor.target.layer is None or len(info.shape) == 1
    }
    digest = hashlib.sha256()
    for name in sorted(sources):
        info = sources[name]
        digest.update(f"{name}\0{info.shape}\0".encode())
        step = -(-info.shape[0] // _ROWS) if len(info.shape) > 1 else 1
        places = (range(row, row + 1) for row in range(0, info.shape[0], step))
        for block in info.rows(places if step > 1 else None, chunk_bytes=_CHUNK_BYTES):
            digest.update(block.astype(np.float32).astype(ml_dtypes.bfloat16).tobytes())
    return digest.hexdigest()
