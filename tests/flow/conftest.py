"""A tiny model with a tokenizer of bytes, and contracts for it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.checkpoint.conftest import BYTES, tiny_llama  # noqa: F401 - a fixture
from tests.cli.conftest import trtkit  # noqa: F401 - a fixture

CALIBRATION = {"samples": 3, "max_length": 32}
RECORDED = {"fp8", "int8-sq", "int4-awq", "int4-gptq", "w4a8-awq"}
GATE = {"samples": 3, "sample_tokens": 40}


def save_tokenizer(folder, letters=BYTES):
    """Every byte is a token, or those of some letters."""
    tokenizer = Tokenizer(BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = {"chat_template": "{% for each in messages %}{{ each.content }}{% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(template))


def calmed(tensors):
    """Make weights as small as those of trained models."""
    for name in tensors:
        if "proj" in name:
            tensors[name] = (tensors[name].astype(np.float32) * 0.1).astype(tensors[name].dtype)


@pytest.fixture
def model(tiny_llama):  # noqa: F811
    folder = tiny_llama(name="model", edit=calmed)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def contract(model, tmp_path):
    """Write a contract."""

    def write(weights, **quantization):
        gate = quantization.pop("gate", None)
        if (
            weights in RECORDED
            or "kv_cache" in quantization
            or RECORDED & {*quantization.get("fallback", ())}
        ):
            quantization = {"calibration": CALIBRATION, **quantization}
        content = {
            "name": "tiny",
            "model": {"source": "model"},
            "quantization": {"weights": weights, **quantization},
            "engine": {"limits": {"max_batch_size": 4, "max_seq_len": 64, "max_num_tokens": 64}},
            "classes": {"only": {"priority": 1, "ttft_ms": 20000, "default_output_tokens": 8}},
        }
        if gate is not None:
            content["quantization"]["gate"] = GATE | gate
        path = tmp_path / "contract.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def stages(trtkit):  # noqa: F811
    """Run a verb; return its exit code, its stages as name, state and facts, and stderr."""

    def run(*arguments):
        code, out, err = trtkit(*arguments, "--output", "json")
        rows = json.loads(out).get("stages", ())
        return (
            code,
            [(each["stage"], each.get("state", each.get("hit")), each.get("facts")) for each in rows],
            err,
        )

    return run
