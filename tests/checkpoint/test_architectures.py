"""All families at once: whatever a file says is an answer, and what is written is read back."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint import test_falcon as falcon
from tests.checkpoint import test_gemma as gemma
from tests.checkpoint import test_gpt2 as gpt2
from tests.checkpoint import test_gpt_neox as gpt_neox
from tests.checkpoint import test_phi3 as phi3
from tests.checkpoint.conftest import save
from tests.checkpoint.family import TINY, convert_model, decoder_shapes, gated_shapes, write_model
from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.safetensors import read_header
from trtkit.checkpoint.trtllm_config import read_config, read_mapping, write_config
from trtkit.errors import ContractError
from trtkit.plan.hf_config import parse_hf_config

CONFIGS = [
    gemma.GEMMA_2B,
    gemma.GEMMA2_9B,
    gemma.GEMMA3_1B,
    gemma.GEMMA3 | {"max_position_embeddings": 16},
    gemma.kinds_of_rope(),
    phi3.PHI3_MINI,
    phi3.PHI3_MINI_128K,
    phi3.PHI4_MINI,
    gpt2.PUBLISHED,
    gpt_neox.PYTHIA_160M,
    *falcon.KINDS.values(),
]
# Nothing in the engine depends on them.
NOT_IN_ENGINE = {
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_ids",
    "pad_token_id",
    "sliding_window_pattern",
}


@pytest.mark.parametrize("ranks", [Parallelism(2, 2), Parallelism(4, 2, gpus_per_node=4)])
def test_ranks_and_machines_are_read_back(ranks):
    model, _ = parse_hf_config(CONFIGS[0])
    written = write_config(model, dtype=model.dtype, quantization={}, parallelism=ranks)
    assert ("gpus_per_node" in written["mapping"]) == (ranks.gpus_per_node != 8)
    assert read_mapping(written, path=Path("config.json")) == ranks


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["architectures"][0])
def test_what_is_written_is_read_back(config):
    model, _ = parse_hf_config(config)
    written = json.loads(json.dumps(write_config(model, dtype=model.dtype, quantization={})))
    read = read_config(written, path=Path("config.json"))
    names = [field.name for field in fields(ModelConfig) if field.name not in NOT_IN_ENGINE]
    assert {name: getattr(read, name) for name in names} == {name: getattr(model, name) for name in names}


def keys(config: dict) -> list[str]:
    """Return every key that some family could look at."""
    arch = ARCHITECTURES[config["architectures"][0]]
    spellings = [*arch.keys.values(), *(spec.keys for spec in arch.numerics.values())]
    return sorted({*config, *arch.neutral, *arch.restated, *(key for keys in spellings for key in keys)})


SCALARS = st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | st.text(max_size=5)
KINDS = st.sampled_from(["full_attention", "sliding_attention", "rope_type", "type", "rope_theta", "long_factor",
                         "short_factor", "factor", "original_max_position_embeddings"])  # fmt: skip
TYPES = st.sampled_from(["longrope", "su", "linear", "default"])
JSON = st.recursive(
    SCALARS | TYPES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KINDS, inner, max_size=4),
    max_leaves=6,
)


@given(st.data())
def test_whatever_a_file_says_it_is_an_engine_or_a_list_of_problems(data):
    config = data.draw(st.sampled_from(CONFIGS))
    changes = data.draw(st.dictionaries(st.sampled_from(keys(config)), JSON, max_size=3))
    try:
        model, _ = parse_hf_config(config | changes | {"architectures": config["architectures"]})
    except ContractError:
        return
    json.dumps(write_config(model, dtype=model.dtype, quantization={}), allow_nan=False)


GUIDE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text().split("## A new architecture")[1]


@pytest.fixture
def internlm2(monkeypatch):
    """Add the example of the guide to the catalog, as it stands there."""
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1], names)
    example = names["INTERNLM2"]
    monkeypatch.setitem(ARCHITECTURES, example.name, example)
    return example.name


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_example_of_the_guide_converts_as_the_model_that_it_is_a_spelling_of(internlm2, tmp_path, tp):
    llama = TINY | {"architectures": ["LlamaForCausalLM"]}
    shapes = decoder_shapes(llama, gated_shapes("mlp.", 64, 96))
    weights = write_model(tmp_path / "llama", llama, shapes)
    ours = write_internlm2(
        tmp_path / "internlm2", llama | {"architectures": [internlm2], "bias": False}, weights
    )
    one, other = convert_model(weights, Parallelism(tp=tp)), convert_model(ours, Parallelism(tp=tp))
    assert {**one.config, "architecture": internlm2} == other.config
    for rank in range(tp):
        assert one.ranks[rank].keys() == other.ranks[rank].keys()
        for name in one.names:
            np.testing.assert_array_equal(one.tensor(name, rank), other.tensor(name, rank))


RENAMED = {
    "embed_tokens": "tok_embeddings",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "lm_head": "output",
}


def write_internlm2(folder: Path, config: dict, llama: Path) -> Path:
    """Write the weights of a Llama as InternLM2 has them: Q, K and V in one tensor, KV head by KV head."""
    source = {name: np.array(info.read()) for name, info in read_header(llama / "model.safetensors").items()}
    tensors = {}
    for name, value in source.items():
        if not re.search("[qkv]_proj", name):
            new = next((name.replace(old, new) for old, new in RENAMED.items() if old in name), name)
            tensors[new] = value
    for layer in range(config["num_hidden_layers"]):
        q, k, v = (
            source[f"model.layers.{layer}.self_attn.{side}_proj.weight"].reshape(2, -1, 16, 64)
            for side in "qkv"
        )
        fused = np.concatenate([q, k, v], axis=1).reshape(-1, 64)
        tensors[f"model.layers.{layer}.attention.wqkv.weight"] = fused
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save(folder / "model.safetensors", tensors)
    return folder
