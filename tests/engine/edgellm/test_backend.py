"""What is told before NVIDIA's exporter is run, and how its end is told."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.checkpoint.quantized import quantized
from tests.flow.conftest import model  # noqa: F401 - a fixture
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import silent
from trtkit.engine.edgellm.backend import EdgellmBackend, build_script, need_chat_template
from trtkit.engine.edgellm.environment import VARIABLE, find_environment
from trtkit.errors import EnvironmentLacks, InputError, StageError
from trtkit.plan.types import EngineLimits

PLAN = SimpleNamespace(name="tiny", gpu="rtx-5090", limits=EngineLimits(4, 48, 64, 64, 32))
EXPORTER = """#!/bin/sh
echo "exporting $1"
{act}
"""


@pytest.fixture
def exporter(tmp_path, monkeypatch):
    """Put an interpreter and an exporter in place, which do as they are told."""

    def make(act, version="0.11.0"):
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, text in (("python", f"#!/bin/sh\necho {version}\n"), ("tensorrt-edgellm-export", EXPORTER)):
            (folder / name).write_text(text.replace("{act}", act))
            (folder / name).chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(folder / "python"))

    return make


@pytest.fixture
def compiled(model, tmp_path):  # noqa: F811
    """Compile a tiny FP8 checkpoint."""

    def run():
        checkpoint = quantized(model, tmp_path / "trtllm", "FP8")
        out = tmp_path / "out"
        out.mkdir()
        facts = EdgellmBackend(HfCheckpoint.open(model)).compile(
            checkpoint.folder, out, PLAN, silent, tmp_path / "log" / "it.log"
        )
        return out, facts

    return run


def test_a_product_has_folder_graph_and_the_command_for_the_gpu(exporter, compiled):
    exporter('mkdir -p "$2/llm" && touch "$2/llm/model.onnx"')
    out, facts = compiled()
    assert {*EdgellmBackend(None).files(PLAN)} <= {
        path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()
    }
    assert facts["quant_algo"] == "FP8"
    assert (
        "--max-input-len 48 --max-kv-cache-capacity 64 --max-batch-size 4" in (out / "build.sh").read_text()
    )


@pytest.mark.parametrize(("act", "said"), [("echo no rope; exit 3", "no rope"), ("true", "no graph")])
def test_an_exporter_that_gives_no_graph_fails_with_what_it_said(exporter, compiled, tmp_path, act, said):
    exporter(act)
    with pytest.raises(StageError, match=said):
        compiled()
    assert "exporting" in (tmp_path / "log" / "it.log").read_text()


def test_an_environment_that_lacks_or_is_old_is_named(exporter, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(EnvironmentLacks, match="nowhere"):
        find_environment()
    exporter("true", version="0.10.1")
    with pytest.raises(EnvironmentLacks, match=r"0\.10\.1 is not at least 0\.11"):
        find_environment()


def test_a_model_without_chat_template_is_refused(model):  # noqa: F811
    need_chat_template(HfCheckpoint.open(model))
    (model / "tokenizer_config.json").write_text(json.dumps({"bos_token": "x"}))
    with pytest.raises(InputError, match="chat template"):
        need_chat_template(HfCheckpoint.open(model))


def test_the_script_runs_where_its_folder_is():
    lines = build_script(PLAN).splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert 'cd "$(dirname "$0")"' in lines
