"""Public models: their configurations, and what is published of their sizes."""

from __future__ import annotations

import json
from pathlib import Path

from trtkit.catalog.model import ModelConfig
from trtkit.plan.hf_config import parse_hf_config

FOLDER = Path(__file__).with_name("models")


def published(name: str) -> ModelConfig:
    """Return one of the models in ``models/``."""
    model, _ = parse_hf_config(json.loads((FOLDER / f"{name}.json").read_text()))
    return model


# Weights as their publishers count them, and bytes of KV cache for one token in 16 bits.
SIZES = {
    "llama-2-7b": (6_738_415_616, 524_288),
    "llama-2-70b": (68_976_648_192, 327_680),
    "llama-3.1-8b": (8_030_261_248, 131_072),
    "llama-3.1-405b": (405_853_388_800, 516_096),
    "llama-3.2-1b": (1_235_814_400, 32_768),
    "llama-3.2-3b": (3_212_749_824, 114_688),
    "llama-3.3-70b": (70_553_706_496, 327_680),
    "mistral-7b-v0.1": (7_241_732_096, 131_072),
    "mistral-7b-v0.3": (7_248_023_552, 131_072),
    "mixtral-8x7b": (46_702_792_704, 131_072),
    "qwen2.5-7b": (7_615_616_512, 57_344),
    "qwen3-8b": (8_190_735_360, 147_456),
    "qwen3-30b-a3b": (30_532_122_624, 98_304),
    "gemma-2-9b": (9_241_705_984, 344_064),
    "gemma-3-1b": (999_885_952, 26_624),
    "phi-3-mini": (3_821_079_552, 393_216),
    "smollm2-135m": (134_515_008, 23_040),
}
