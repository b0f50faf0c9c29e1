"""Weights of the source in torch's memory, one copy and no mapped pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.checkpoint.safetensors import Array, TensorInfo
from trtkit.errors import InputError

if TYPE_CHECKING:
    import torch

_DAMAGED = "the checkpoint is damaged: download it again"


def compute_dtype(source: str) -> torch.dtype:
    """Return what a model of that data type is run in: bfloat16 as it is, all else in float32.

    Activations of models in float16 may overflow there, and CPUs compute it in float32 anyway.
    """
    import torch

    return torch.bfloat16 if source == "bfloat16" else torch.float32


def load(info: TensorInfo, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of the source.

    Raises:
        InputError: There is NaN or infinity in it.
    """
    import torch

    return load_into(torch.empty(info.shape, dtype=dtype, device=device), info)


def load_into(whole: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """Fill a tensor from the source, and return it.

    Raises:
        InputError: There is NaN or infinity in it.
    """
    import torch

    flat, start = whole.view(-1), 0
    for chunk in info.chunks():
        values = _as_torch(chunk)
        if not torch.isfinite(values).all():
            raise InputError(f"{info.name} holds NaN or infinity", path=info.path, hint=_DAMAGED)
        flat[start : start + len(chunk)] = values
        start += len(chunk)
    return whole


def rows_between(info: TensorInfo, start: int, stop: int) -> TensorInfo:
    """Return some rows of a matrix as a tensor of its own."""
    rows, columns = info.shape
    size_bytes = info.nbytes // rows if rows else 0
    shape = (min(stop, rows) - start, columns)
    return replace(info, shape=shape, offset=info.offset + start * size_bytes)


def load_rows(
    info: TensorInfo, rows: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return some rows of a matrix; nothing else of it is read."""
    import torch

    blocks = info.rows(range(row, row + 1) for row in rows)
    return torch.cat([_as_torch(block.copy()) for block in blocks]).to(device, dtype)


def find(tensors: Mapping[str, TensorInfo], name: str, prefix: str) -> TensorInfo:
    """Return the tensor of a parameter, whose name may lack a prefix in the source.

    Raises:
        InputError: There is none.
    """
    info = tensors.get(name) or tensors.get(name.removeprefix(prefix))
    if info is None:
        hint = "download the checkpoint whole, or convert it with the transformers that it was made with"
        raise InputError(f"transformers' model has {name}, and the source has not", hint=hint)
    return info


def _as_torch(values: Array) -> torch.Tensor:
    """Return values as a tensor; only until the next block is read, as they share its memory."""
    import torch

    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.uint16).view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(values.copy())
