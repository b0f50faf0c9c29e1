"""Tiny models with a tokenizer, and what transformers itself sees when it runs them."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.pytorch_utils import Conv1D

from tests.architectures import tiny
from tests.architectures.variants import VARIANTS, Variant
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.quantize.calibrate.data import Data
from trtkit.quantize.calibrate.request import Request
from trtkit.quantize.calibrate.run import Calibration, prepare

TEXT = "".join(chr(97 + (7 * i + i // 5) % 26) for i in range(90))


def build(folder: Path, variant: Variant) -> Path:
    """Save a tiny model with a tokenizer of bytes, and a text beside it."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    tiny.build(variant, folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder.parent / "texts.txt").write_text(TEXT)
    return folder


def request(folder: Path, **options) -> Request:
    """Ask for samples of 24 tokens: longer than the windows of the variants."""
    return Request(Data(folder.parent / "texts.txt"), **{"samples": 3, "max_tokens": 24} | options)


def prepared(folder: Path, **options) -> Calibration:
    return prepare(HfCheckpoint.open(folder), request(folder, **options))


def seen_by_transformers(name: str, folder: Path, calibration: Calibration) -> dict[str, torch.Tensor]:
    """Return the maxima of inputs and outputs of every linear layer, and of the KV cache, from the whole model."""
    attention = "eager" if name == "gemma2" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention
    )
    seen: dict[str, torch.Tensor] = {}

    def see(key: str, values: torch.Tensor) -> None:
        found = values.detach().abs().flatten(0, -2).amax(0)
        seen[key] = torch.maximum(seen[key], found) if key in seen else found

    def watch(module_name: str):
        def hook(_, inputs, output):
            see(f"{module_name}|x", inputs[0])
            see(f"{module_name}|y", output)

        return hook

    for module_name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            module.register_forward_hook(watch(module_name))
    for sample in calibration.samples.samples:
        with torch.no_grad():
            out = model(torch.from_numpy(sample.ids)[None])
        for index, layer in enumerate(out.past_key_values.layers):
            # Layers with a window have dropped the first tokens already.
            if layer.keys.shape[2] == len(sample.ids):
                see(f"{_layers_of(model)}.{index}.k_cache|y", layer.keys)
                see(f"{_layers_of(model)}.{index}.v_cache|y", layer.values)
    return seen


def _layers_of(model) -> str:
    return next(name for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList))


DENSE = [name for name, variant in VARIANTS.items() if not variant.has_experts]
