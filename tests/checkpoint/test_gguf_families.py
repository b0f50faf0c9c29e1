# ruff: noqa: E402 - what follows the checks needs both libraries
"""GGUF of every family: what comes back is the model that llama.cpp's converter was given."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import load_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tests.architectures import spelling, tiny
from tests.architectures.variants import VARIANTS
from tests.checkpoint import llama_cpp
from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.gguf.folder import convert_gguf
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.plan.hf_config import parse_hf_config

# What a GGUF file has no place for is set to what llama.cpp takes for granted.
UNSAID = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3": {
        "query_pre_attn_scalar": 32,
        "sliding_window_pattern": 6,
        "layer_types": None,
        "num_hidden_layers": 6,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 50_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    "gpt2": {"n_ctx": 128},
    "falcon-7b": {"max_position_embeddings": 2048},
    "falcon-40b": {"max_position_embeddings": 2048},
    "falcon-11b": {"max_position_embeddings": 2048},
    "gemma": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    "gpt-neox": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
    },
}
# llama.cpp has neither normed weights of Qwen2's experts nor Falcon's ALiBi, and takes for granted how wide GPT-2 is.
LEFT_OUT = {"qwen2-moe-normed", "falcon-rw", "gpt2-narrow", "mistral-wide-window"}
NAMES = [name for name in VARIANTS if name not in LEFT_OUT]


def built(name: str, base: Path) -> Path:
    """Build a variant; return its folder in the spelling of transformers 4."""
    torch.set_num_threads(1)
    variant = dataclasses.replace(VARIANTS[name], settings=VARIANTS[name].settings | UNSAID.get(name, {}))
    tiny.build(variant, base / name)
    return spelling.respell(base / name)


@pytest.fixture(scope="module", params=NAMES)
def converted(request, tmp_path_factory):
    """The original folder, the GGUF file, and what that was converted to."""
    base = tmp_path_factory.mktemp("gguf")
    original = built(request.param, base)
    llama_cpp.write(original, base / "model.gguf")
    convert_gguf(base / "model.gguf", base / "hf")
    return original, base / "model.gguf", base / "hf"


def expected_of(folder: Path, kind: str) -> dict[str, np.ndarray]:
    """The tensors; norms of Gemma have been through 1 + w."""
    one = np.float32(1)
    return {
        name: (value + one) - one if "gemma" in kind and name.endswith("norm.weight") else value
        for name, value in load_file(folder / "model.safetensors").items()
    }


def test_every_tensor_comes_back_in_its_place(converted):
    original, _, folder = converted
    expected = expected_of(original, json.loads((original / "config.json").read_text())["model_type"])
    found = HfCheckpoint.open(folder).tensors
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].read(), value, err_msg=name)


def meaning(folder: Path) -> ModelConfig:
    """The configuration without what the file of a model without a tokenizer cannot know."""
    config, _ = parse_hf_config(json.loads((folder / "config.json").read_text()))
    # Mistral without a window is Llama; LongRoPE's factor follows from the lengths.
    scaling = {
        key: value for key, value in (config.rotary_scaling or {}).items() if key != "attention_factor"
    }
    return dataclasses.replace(
        config,
        architecture=config.architecture.replace("Mistral", "Llama"),
        rotary_scaling=scaling,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(),
        pad_token_id=None,
    )


def test_the_configuration_means_the_same(converted):
    original, _, folder = converted
    assert meaning(folder) == meaning(original)


@torch.no_grad()
def test_transformers_computes_the_same_from_both(converted):
    original, _, folder = converted
    model = transformers.AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32)
    kind = model.config.model_type
    for name, parameter in model.named_parameters():
        if "gemma" in kind and name.endswith("norm.weight"):
            parameter.copy_((parameter + 1) - 1)
    back = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(back(tiny.prompts()).logits, model(tiny.prompts()).logits)


READ_BY_TRANSFORMERS = (
    "llama",
    "llama-tied",
    "qwen2",
    "qwen2-moe",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2",
)


@pytest.mark.parametrize("converted", READ_BY_TRANSFORMERS, indirect=True)
def test_transformers_reads_the_same_out_of_the_file(converted, monkeypatch):
    # With Python 3.10 transformers finds no version of packages whose wheel has no list of modules.
    monkeypatch.setattr(gguf, "__version__", version("gguf"), raising=False)
    _, path, folder = converted
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=ours)
    state = ours.state_dict()
    assert len(theirs["tensors"]) >= len({value.data_ptr() for value in state.values()})
    for name, value in theirs["tensors"].items():
        torch.testing.assert_close(state[name], value.float(), rtol=0, atol=0, msg=name)
    for key in ("num_hidden_layers", "num_attention_heads", "rope_theta", "rms_norm_eps", "sliding_window"):
        if key in theirs["config"]:
            said = json.loads((folder / "config.json").read_text())[key]
            assert said == pytest.approx(theirs["config"][key], rel=1e-6), key


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2", "gpt-neox", "falcon-40b"])
def test_quantized_matrices_are_put_in_order_all_the_same(name, tmp_path):
    original = built(name, tmp_path)
    llama_cpp.write(original, tmp_path / "q.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    convert_gguf(tmp_path / "q.gguf", tmp_path / "q")
    for key, value in expected_of(original, name).items():
        found = HfCheckpoint.open(tmp_path / "q").tensors[key].read()
        # Largest values are about 0.6: 8 bits round by up to 0.6 / 254, and bfloat16 by another 2 ** -9.
        np.testing.assert_allclose(found.astype("f4"), value.astype("f4"), rtol=0, atol=0.006, err_msg=key)
