"""The model families that trtkit converts, by class name."""

from __future__ import annotations

from trtkit.catalog.architectures.architecture import Architecture as Architecture
from trtkit.catalog.architectures.falcon import FALCON
from trtkit.catalog.architectures.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA3_WRAPPER_HINT
from trtkit.catalog.architectures.gpt2 import GPT2
from trtkit.catalog.architectures.gpt_neox import GPT_NEOX
from trtkit.catalog.architectures.granite import GRANITE
from trtkit.catalog.architectures.llama import LLAMA
from trtkit.catalog.architectures.mistral import MISTRAL
from trtkit.catalog.architectures.mixtral import MIXTRAL
from trtkit.catalog.architectures.phi3 import PHI3
from trtkit.catalog.architectures.qwen2 import QWEN2
from trtkit.catalog.architectures.qwen2_moe import QWEN2_MOE
from trtkit.catalog.architectures.qwen3 import QWEN3, QWEN3_MOE

ARCHITECTURES: dict[str, Architecture] = {
    arch.name: arch
    for arch in (
        FALCON,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GPT2,
        GPT_NEOX,
        GRANITE,
        LLAMA,
        MISTRAL,
        MIXTRAL,
        PHI3,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
    )
}

WRAPPERS = {"Gemma3ForConditionalGeneration": GEMMA3_WRAPPER_HINT}
"""Classes around a model that can be converted, with the way to it."""
