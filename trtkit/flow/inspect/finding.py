"""What is found in a folder: facts for all kinds alike, and what is damaged."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from trtkit.errors import Problem


class Kind(str, enum.Enum):
    """What a path holds."""

    CHECKPOINT = "TensorRT-LLM checkpoint"
    HUGGING_FACE = "Hugging Face checkpoint"
    ENGINE = "engine"
    REPOSITORY = "model repository"
    GGUF = "GGUF model"
    PRODUCT = "build product"


@dataclass(frozen=True)
class Amount:
    """How much there is of one data type."""

    tensors: int = 0
    elements: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Return both together."""
        return Amount(self.tensors + other.tensors, self.elements + other.elements, self.bytes + other.bytes)


@dataclass(frozen=True)
class Finding:
    """Everything that headers and descriptions tell; None for what they do not."""

    kind: Kind
    path: str
    made_by: str | None = None
    architecture: str | None = None
    weights: str | None = None
    """Format of the linear layers, as whoever wrote it calls it."""
    kv_cache: str | None = None
    dtype: str | None = None
    """Data type of everything else."""
    ranks: int | None = None
    parameters: int | None = None
    """Of the model, all ranks together, whatever its format; a tied table counts once."""
    kv_bytes_per_token: int | None = None
    """Over all layers, on the rank that holds most."""
    dtypes: dict[str, Amount] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    """Name of each file of weights to its size in bytes."""
    details: dict[str, Any] = field(default_factory=dict)
    """What only this kind has."""
    notes: tuple[str, ...] = ()
    """What is worth knowing and is no damage."""
    problems: tuple[Problem, ...] = ()
    parts: tuple[Finding, ...] = ()
    """What lies inside and is something of its own: the engine of a repository."""

    @property
    def bytes(self) -> int:
        """Size of the files of weights."""
        return sum(self.files.values())

    @property
    def tensors(self) -> int:
        """Number of tensors, each rank's counted."""
        return sum(amount.tensors for amount in self.dtypes.values())

    @property
    def all_problems(self) -> tuple[Problem, ...]:
        """What is damaged, in the parts too."""
        return (*self.problems, *(problem for part in self.parts for problem in part.all_problems))
