"""Mistral: Llama's tensors under another class name, sometimes with a sliding window."""

from __future__ import annotations

import dataclasses

from trtkit.catalog.architectures.architecture import Window
from trtkit.catalog.architectures.llama import LLAMA

MISTRAL = dataclasses.replace(
    LLAMA,
    name="MistralForCausalLM",
    # Without the key transformers assumes 8 KV heads here, whatever the number of heads: ask instead.
    defaults={key: value for key, value in LLAMA.defaults.items() if key != "num_kv_heads"},
    window=Window.ALL_LAYERS,
    sliding_window_default=4096,
)
