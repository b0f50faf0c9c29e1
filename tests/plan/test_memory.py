"""Bytes of models whose layers are not all alike: experts, routers, the expert that every token visits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trtkit.catalog.formats import WEIGHTS
from trtkit.plan.hf_config import parse_hf_config
from trtkit.plan.memory import activation_bytes, weights_bytes

MOE, _ = parse_hf_config({
    "architectures": ["Qwen2MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 1000,  # of dense layers, of which there are none
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128,
    "vocab_size": 260,
    "torch_dtype": "bfloat16",
})  # fmt: skip
ROWS = (
    128 + 64 + 8 * (2 * 48 + 64) + 2 * 80 + 64
)  # of qkv, dense, fc and proj of each expert and of the shared one
LINEAR = (128 + 64) * 64 + 8 * 3 * 48 * 64 + 3 * 80 * 64
REST = 128 + 2 * 64 + 64  # biases of qkv, two norms, the gate of the shared expert
ROUTER = 8 * 64
TABLES = 2 * 260 * 64 + 64  # embedding, head, last norm


@pytest.mark.parametrize(
    ("weights", "dtype", "layer", "table"),
    [
        ("none", "bfloat16", 2 * (LINEAR + REST), 2),
        ("none", "float32", 4 * (LINEAR + REST), 4),
        ("int8-wo", "bfloat16", LINEAR + 2 * (ROWS + REST), 2),
        ("fp8", "float16", LINEAR + 2 * REST, 2),
    ],
)
def test_experts_are_quantized_and_their_router_is_float32(weights, dtype, layer, table):
    expected = 3 * (layer + 4 * ROUTER) + table * TABLES
    assert weights_bytes(MOE, WEIGHTS[weights], dtype) == expected


def test_buffers_grow_with_the_experts_that_a_token_visits():
    def per_token(**changes):
        return activation_bytes(replace(MOE, moe=replace(MOE.moe, **changes)), 1, 0) // 4

    # Residual, normed input, qkv; the shared expert's three tensors; a share for each expert.
    common = 2 * 64 + 128 + 3 * 80 + 8
    assert [per_token(experts_per_token=chosen) for chosen in (1, 2)] == [
        common + chosen * (3 * 48 + 2 * 64) for chosen in (1, 2)
    ]
