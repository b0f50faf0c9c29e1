"""Tiny random models, made, saved and run by transformers itself."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
import transformers
from torch import nn

from tests.architectures.variants import VOCAB, Variant

# Longer than every sliding window of the variants, shorter than every limit of positions.
PROMPT_TOKENS = 24


def build(variant: Variant, folder: Path) -> None:
    """Save the model of a variant with weights of which none can be missed, in float32."""
    config = getattr(transformers, variant.config_class)(**variant.settings)
    torch.manual_seed(zlib.crc32(folder.name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scatter(name, parameter, centre=0.0 if "Gemma" in variant.config_class else 1.0)
    model.save_pretrained(folder)


def scatter(name: str, parameter: nn.Parameter, *, centre: float) -> None:
    """Draw a parameter so that a lost bias, a swapped branch or a wrong rotation moves the logits."""
    is_norm = "norm" in name or "ln_" in name
    parameter.normal_(std=0.2 if parameter.ndim == 1 else 0.15)
    if is_norm and name.endswith("weight"):
        parameter.add_(centre)


def prompts() -> torch.Tensor:
    """Return two rows of token ids."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, VOCAB, (2, PROMPT_TOKENS), generator=generator)


def reopen(variant: Variant, folder: Path) -> transformers.PreTrainedModel:
    """Read the saved model again, set to compute what the engine would."""
    settings = {"attn_implementation": "eager", "dtype": torch.float32, **variant.oracle}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **settings)


def expected_logits(variant: Variant, folder: Path) -> torch.Tensor:
    """Return what transformers computes from the saved model."""
    with torch.no_grad():
        return reopen(variant, folder)(prompts()).logits
