"""One text that stands for the weights of a model, whatever files they are in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from trtkit.checkpoint.mapping import MappedTensor


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
