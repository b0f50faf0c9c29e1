"""Granite 3: Llama with four multipliers. Needs a TensorRT-LLM whose Llama class reads them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures.architecture import Numeric
from trtkit.catalog.architectures.llama import LLAMA
from trtkit.catalog.positive import is_positive


def engine_multipliers(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rewrite the two multipliers that the engine means otherwise; malformed values stay for the reader to report.

    Scores are ``q.k * attention_multiplier`` in the source and ``q.k / sqrt(head size) * attention_multiplier`` in the
    engine: 1/128 with heads of 128 becomes 0.0884. Logits are divided by ``logits_scaling`` in the source and
    multiplied by the engine's factor.
    """
    new = dict(raw)
    scale, divisor, head_size = raw.get("attention_multiplier"), raw.get("logits_scaling"), _head_size(raw)
    if is_positive(scale) and is_positive(head_size):
        new["attention_multiplier"] = scale * math.sqrt(head_size)
    if is_positive(divisor):
        new["logits_scaling"] = 1 / divisor
    return new


def _head_size(raw: Mapping[str, Any]) -> Any:
    hidden, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    if raw.get("head_dim") is not None:
        return raw["head_dim"]
    return hidden // heads if is_positive(hidden) and is_positive(heads) else None


GRANITE = dataclasses.replace(
    LLAMA,
    name="GraniteForCausalLM",
    numerics={
        "embedding_multiplier": Numeric(("embedding_multiplier",), 1.0),
        # transformers takes 1.0 without the key, and no model is trained with such scores: ask instead.
        "attention_multiplier": Numeric(("attention_multiplier",)),
        "residual_multiplier": Numeric(("residual_multiplier",), 1.0),
        "output_multiplier_scale": Numeric(("logits_scaling",), 1.0),
    },
    adapt=engine_multipliers,
)
