"""LoRA adapters that an engine takes."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from trtkit.contract.section import Section


class LoraModule(str, enum.Enum):
    """Layers that adapters may change, by TensorRT-LLM's names."""

    ATTN_QKV = "attn_qkv"
    ATTN_Q = "attn_q"
    ATTN_K = "attn_k"
    ATTN_V = "attn_v"
    ATTN_DENSE = "attn_dense"
    MLP_H_TO_4H = "mlp_h_to_4h"
    MLP_4H_TO_H = "mlp_4h_to_h"
    MLP_GATE = "mlp_gate"
    MOE_H_TO_4H = "moe_h_to_4h"
    MOE_4H_TO_H = "moe_4h_to_h"
    MOE_GATE = "moe_gate"
    MOE_ROUTER = "moe_router"
    MLP_ROUTER = "mlp_router"
    MLP_GATE_UP = "mlp_gate_up"


class Lora(Section):
    """Adapters; back end tensorrt only."""

    adapters: Annotated[tuple[str, ...], Field(max_length=64, strict=False)] = ()
    """Hugging Face folders of adapters, relative to the contract, that come with the engine; the first one gives the
    modules where they are left out."""
    max_rank: Annotated[int, Field(ge=1, le=1024)] = 64
    """Largest rank of an adapter."""
    modules: Annotated[
        tuple[Annotated[LoraModule, Field(strict=False)], ...], Field(max_length=32, strict=False)
    ] = ()
    """Layers that adapters may change; Q, K and V go together."""
