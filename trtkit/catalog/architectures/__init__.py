"""The model families that trtkit converts, by class name."""

from __future__ import annotations

from trtkit.catalog.architectures.architecture import Architecture as Architecture
from trtkit.catalog.architectures.llama import LLAMA
from trtkit.catalog.architectures.mistral import MISTRAL

ARCHITECTURES: dict[str, Architecture] = {arch.name: arch for arch in (LLAMA, MISTRAL)}
