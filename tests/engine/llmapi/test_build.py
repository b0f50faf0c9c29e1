"""Whole builds of a tiny model: folder, gate and repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from trtkit.checkpoint.hf import HfCheckpoint

LIMITS = {"max_batch_size": 4, "max_seq_len": 64, "max_num_tokens": 64}


@pytest.fixture
def moved(contract):
    """Write a contract for another back end."""

    def write(backend, weights, *, gpu="l4", **quantization):
        path = contract(weights, **quantization)
        content = yaml.safe_load(path.read_text())
        content["engine"] = {"backend": backend, "gpu": gpu, "limits": LIMITS}
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.mark.parametrize(("backend", "settings"), [("llmapi", "model.yaml"), ("vllm", "model.json")])
def test_a_build_gives_a_repository_around_one_folder(trtkit, moved, backend, settings):
    code, out, err = trtkit("build", moved(backend, "fp8-rowwise"), "--output", "json")
    assert code == 0, err
    version = Path(json.loads(out)["repository"], "tensorrt_llm", "1")
    assert (version / settings).is_file()
    quantized = json.loads((version / "engine" / "model" / "hf_quant_config.json").read_text())
    assert quantized["quantization"]["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN"
    assert len(HfCheckpoint.open(version / "engine" / "model").tensors) > 20
    assert not (version.parents[1] / "preprocessing").exists()


def test_ranks_share_one_folder(trtkit, moved):
    code, out, err = trtkit(
        "build", moved("llmapi", "none"), "--set", "engine.tensor_parallel=2", "--output", "json"
    )
    assert code == 0, err
    version = Path(json.loads(out)["repository"], "tensorrt_llm", "1")
    assert yaml.safe_load((version / "model.yaml").read_text())["tensor_parallel_size"] == 2
    assert [path.name for path in (version / "engine" / "model").glob("*.safetensors")] == [
        "model.safetensors"
    ]


def test_a_format_without_a_form_is_told_before_anything_is_done(trtkit, moved, tmp_path):
    code, _, err = trtkit("build", moved("llmapi", "none", kv_cache="fp8"))
    assert code == 2
    assert "an FP8 KV cache beside plain weights has no form" in err
    assert not (tmp_path / "home" / "calibrate").exists()


def test_int8_is_refused_with_the_nearest(trtkit, moved):
    code, _, err = trtkit("build", moved("llmapi", "int8-wo"))
    assert code == 2
    assert "has no INT8" in err


def test_a_draft_model_lies_beside_the_large_one(trtkit, moved, tmp_path):
    small = moved("llmapi", "none").rename(tmp_path / "small.yaml")
    large = moved("llmapi", "none")
    asked = "{mode: draft-target, draft: small.yaml, max_draft_tokens: 3}"
    # Both pools have to fit the same GPU.
    pools = ("--set", "engine.kv_cache.max_tokens=1024")
    content = yaml.safe_load(small.read_text())
    content["engine"]["kv_cache"] = {"max_tokens": 1024}
    small.write_text(yaml.safe_dump(content))
    code, out, err = trtkit(
        "build", large, "--set", f"engine.speculation={asked}", *pools, "--output", "json"
    )
    assert code == 0, err
    version = Path(json.loads(out)["repository"], "tensorrt_llm", "1")
    settings = yaml.safe_load((version / "model.yaml").read_text())["speculative_config"]
    assert settings["speculative_model_dir"] == "/model_repo/tensorrt_llm/1/draft/model"
    assert (version / "draft" / "model" / "config.json").is_file()
