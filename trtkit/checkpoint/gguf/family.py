"""What differs between the families of models in GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtkit.checkpoint.gguf.file import GgufFile
from trtkit.checkpoint.gguf.weights import Order


@dataclass(frozen=True)
class Family:
    """One architecture of llama.cpp as a class of Hugging Face."""

    class_name: str
    model_type: str
    keys: Mapping[str, str]
    """Setting to key of ``config.json``."""
    tensors: Mapping[str, str]
    """Tensor to tensor, without ``.weight`` and ``.bias``; ``{layer}`` and ``{expert}`` count from 0."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """What every file of the family means without saying so, by key of ``config.json``."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Settings that can be honoured with these values only."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Key of ``config.json`` to the tensor of the first layer by whose presence it is true."""
    orders: Mapping[str, Order] = field(default_factory=dict)
    norm_plus: float = 0.0
    """What has to be added to the weights of norms."""
    rotates: bool = True
    """Whether positions are rotary embeddings."""
    rotary_pct: str | None = None
    """Key of ``config.json`` for the part of each head that is rotated; None where that is all of it."""
    derive: Callable[[GgufFile], Mapping[str, Any]] = lambda _: {}
    """Returns keys of ``config.json`` that follow from several settings."""
