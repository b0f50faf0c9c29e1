"""The model families that trtkit converts, by class name."""

from __future__ import annotations

from trtkit.catalog.architectures.architecture import Architecture as Architecture
from trtkit.catalog.architectures.granite import GRANITE
from trtkit.catalog.architectures.llama import LLAMA
from trtkit.catalog.architectures.mistral import MISTRAL
from trtkit.catalog.architectures.mixtral import MIXTRAL
from trtkit.catalog.architectures.qwen2 import QWEN2
from trtkit.catalog.architectures.qwen2_moe import QWEN2_MOE
from trtkit.catalog.architectures.qwen3 import QWEN3, QWEN3_MOE

ARCHITECTURES: dict[str, Architecture] = {
    arch.name: arch
    for arch in (
        GRANITE,
        LLAMA,
        MISTRAL,
        MIXTRAL,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
    )
}
