"""What a compilation leaves behind, and what stops it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.engine.cpu.compile import compile_engine
from trtkit.engine.cpu.folder import EngineFolder
from trtkit.engine.cpu.pipeline import Pipeline
from trtkit.engine.cpu.runtime import CpuEngine
from trtkit.engine.inflight.request import GenerationRequest
from trtkit.errors import EnvironmentLacks, InputError, StageError
from trtkit.plan.kv import kv_bytes_per_token
from trtkit.plan.types import Plan


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_engine_describes_itself_like_tensorrt_llm(checkpoint: Any, out: Path, plan: Plan) -> None:
    opened: TrtllmCheckpoint = checkpoint(quantization={"quant_algo": "W8A16"})
    info = compile_engine(opened.folder, out, plan)
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "openvino_model.bin",
        "openvino_model.xml",
    ]
    config = json.loads((out / "config.json").read_text())
    assert config["pretrained_config"] == opened.config
    assert config["build_config"] == {
        "max_batch_size": 32,
        "max_input_len": 200,
        "max_seq_len": 300,
        "max_num_tokens": 128,
        "max_beam_width": 1,
        "tokens_per_block": 32,
        "kv_blocks": 320,
        "enable_block_reuse": True,
    }
    assert info.weights_bytes == (out / "openvino_model.bin").stat().st_size
    assert info.graph_s > 0 < info.compile_s


def test_the_same_inputs_give_the_same_bytes(checkpoint: Any, tmp_path: Path, plan: Plan) -> None:
    opened, files = checkpoint(), []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        compile_engine(opened.folder, tmp_path / name, plan)
        files.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert files[0] == files[1]


def test_copied_head_costs_nothing(checkpoint: Any, tmp_path: Path, out: Path, plan: Plan) -> None:
    opened = checkpoint(tied=True)
    tied = compile_engine(opened.folder, out, plan)
    table = opened.tensor("transformer.vocab_embedding.weight").nbytes
    assert tied.weights_bytes < (opened.folder / "rank0.safetensors").stat().st_size + table


def test_pool_is_as_large_as_the_plan_thinks(engine_dir: Path) -> None:
    folder = EngineFolder.open(engine_dir)
    pipeline = Pipeline(folder)
    pipeline.enter(GenerationRequest("a", [1], 1))
    pipeline.step()
    pool_bytes = pipeline._pipeline.get_metrics().cache_size_in_bytes
    assert pool_bytes == folder.limits.kv_blocks * 32 * kv_bytes_per_token(
        "cpu", num_layers=2, num_kv_heads=2, head_size=16
    )


def test_other_block_sizes_are_refused(checkpoint: Any, out: Path, with_limits: Callable[..., Plan]) -> None:
    with pytest.raises(StageError, match="tokens_per_block is 64"):
        compile_engine(checkpoint().folder, out, with_limits(tokens_per_block=64))


def test_values_that_are_not_finite_stop_the_build(checkpoint: Any, out: Path, plan: Plan) -> None:
    opened = checkpoint()
    info = opened.info("transformer.ln_f.weight")
    with (opened.folder / "rank0.safetensors").open("r+b") as file:
        file.seek(info.offset)
        file.write(np.full(info.shape, 0x7FC0, np.uint16).tobytes())
    with pytest.raises(StageError, match="logits are not finite"):
        compile_engine(opened.folder, out, plan)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"backend": "cpu"}', '{"backend": "tensorrt"}'])
def test_what_is_no_engine_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match="engine") as caught:
        CpuEngine(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_damaged_model_and_tokenizer_are_named(engine_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((engine_dir / "config.json").read_text())
    (tmp_path / "openvino_model.xml").write_text("<net>")
    with pytest.raises(StageError, match="OpenVINO cannot load it"):
        CpuEngine(tmp_path)
    with pytest.raises(InputError, match="tokenizer cannot be read"):
        CpuEngine(engine_dir, tmp_path)


def test_a_full_disk_is_named(checkpoint: Any, out: Path, plan: Plan) -> None:
    (out / "openvino_model.bin").symlink_to("/dev/full")
    with pytest.raises(EnvironmentLacks, match="free space"):
        compile_engine(checkpoint().folder, out, plan)


def test_openvino_tells_nobody_that_it_is_used(tmp_path: Path) -> None:
    code = "import sys, trtkit.engine.cpu.runtime, openvino_genai; print('openvino_telemetry.main' in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {"HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == "False\n"
    assert list(tmp_path.iterdir()) == []
