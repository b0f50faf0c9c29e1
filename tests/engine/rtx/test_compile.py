"""TensorRT for RTX takes the graph of every format, ahead of time, for several GPUs at once."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial

import pytest

from tests.engine.rtx.conftest import LIMITS, plan_for
from tests.engine_cpu.formats import QUANTIZERS
from trtkit.engine.graph.linear import FORMS
from trtkit.engine.graph.spec import GraphSpec
from trtkit.engine.graph.write import write_graph
from trtkit.engine.manifest import read_manifest
from trtkit.engine.rtx.backend import OnnxBackend, RtxBackend
from trtkit.engine.rtx.compiler import MODULE, compile_model
from trtkit.engine.rtx.config import ENGINE_FILE
from trtkit.engine.rtx.elsewhere import OTHER_ENGINE_FILE, PROFILES_FILE, SCRIPT_FILE, job_for
from trtkit.engine.rtx.walk import walk
from trtkit.engine.store import Stage, Store
from trtkit.errors import StageError
from trtkit.flow.inspect import inspect
from trtkit.flow.verify import verify_folder

pytest.importorskip("tensorrt_rtx")
onnx = pytest.importorskip("onnx")

INT8_WEIGHTS = {"quantization": {"quant_algo": "W8A16", "kv_cache_quant_algo": None}}
EVERY = [75, 80, 86, 89, 120, 121]
SMS = {"fp8": [89, 120, 121], "fp8-rowwise": [89, 120, 121], "awq": EVERY[1:], "awq-zero": EVERY[1:]}
FORMATS = [
    pytest.param(None, {}, EVERY, id="none"),
    pytest.param(None, INT8_WEIGHTS, EVERY, id="int8-wo"),
    *(
        pytest.param(name, {}, SMS.get(name, EVERY), id=name)
        for name in QUANTIZERS
        if QUANTIZERS[name][0]["quant_algo"] in FORMS
    ),
]


def silent(*_):
    pass


@pytest.mark.parametrize(("name", "changes", "sms"), FORMATS)
def test_a_format_compiles_with_native_layers(tmp_path, checkpoint, name, changes, sms):
    folder = checkpoint(name, **changes)
    plan = plan_for(folder, targets=sms)
    out = tmp_path / "engine"
    out.mkdir()
    facts = RtxBackend().compile(folder, out, plan, silent, tmp_path / "log" / "compile.log")
    assert {path.name for path in out.iterdir()} == set(RtxBackend().files(plan))
    assert facts["engine_bytes"] == (out / ENGINE_FILE).stat().st_size > 0
    assert facts["layers"]["attention_output"] == 2
    config = json.loads((out / "config.json").read_text())
    size = facts["engine_bytes"]
    assert config["runtime"] == {
        "engine": ENGINE_FILE,
        "engine_bytes": size,
        "engine_sms": sms,
        "other_sms": [],
    }
    assert inspect(out).problems == ()
    os.truncate(out / ENGINE_FILE, size - 1)
    (problem,) = inspect(out).problems
    assert f"is {size - 1:,} bytes long, config.json says {size:,}" in problem.message


@pytest.mark.parametrize("name", [None, "sq-qdq", "fp8", "awq"])
def test_the_form_with_blocks_compiles_with_native_layers(tmp_path, checkpoint, name):
    spec = GraphSpec(4, 48, 16, "float16", paged=True, tokens_per_block=16)
    graph, job = write_graph(checkpoint(name), tmp_path, spec), tmp_path / "job.json"
    job.write_text(json.dumps(job_for(spec, graph.cache, module=MODULE, sms=(89, 120)) | {"ask": True}))
    seen = {}
    compile_model(job, tmp_path / "log", lambda layers: seen.update(walk(layers, graph)), silent)
    assert (seen["attention_output"], seen["scatter"]) == (2, 4)
    assert (tmp_path / ENGINE_FILE).stat().st_size > 0


def test_what_the_compiler_refuses_is_an_error_with_its_reason_and_a_log_that_stays(tmp_path, checkpoint):
    folder, log = checkpoint("awq"), tmp_path / "log" / "compile.log"
    out = tmp_path / "engine"
    out.mkdir()
    with pytest.raises(StageError, match="int4") as caught:
        RtxBackend().compile(folder, out, plan_for(folder, targets=EVERY), silent, log)
    assert caught.value.path == str(log)
    assert "[ERROR]" in log.read_text()
    assert not (out / ENGINE_FILE).exists()


def test_an_engine_that_cannot_be_written_whole_is_an_error(tmp_path, checkpoint):
    """TensorRT swallows what a writer raises, and says that the engine is made."""
    folder, out = checkpoint(), tmp_path / "engine"
    out.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(StageError, match="File too large"):
            RtxBackend().compile(folder, out, plan_for(folder), silent, tmp_path / "compile.log")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (out / ENGINE_FILE).exists()


def test_a_gpu_that_the_compiler_does_not_know_gets_a_script_that_makes_the_engine_there(
    tmp_path, checkpoint
):
    folder = checkpoint("sq-qdq")
    plan = plan_for(folder, gpu="h100-sxm")
    out = tmp_path / "engine"
    out.mkdir()
    facts = RtxBackend().compile(folder, out, plan, silent, tmp_path / "compile.log")
    assert (facts["engine_sms"], facts["other_sms"]) == ([], [90])
    assert {path.name for path in out.iterdir()} == set(RtxBackend().files(plan))
    assert json.loads((out / "config.json").read_text())["runtime"]["engine"] is None
    # The script, as it lies there, on the one TensorRT that there is without a GPU.
    job = json.loads((out / PROFILES_FILE).read_text())
    assert (job["module"], job["sms"]) == ("tensorrt", [])
    (out / PROFILES_FILE).write_text(json.dumps(job | {"module": "tensorrt_rtx", "sms": [120]}))
    script = [sys.executable, SCRIPT_FILE, PROFILES_FILE]
    subprocess.run(script, cwd=out, check=True, capture_output=True)
    made = {path.name for path in out.iterdir()} - set(RtxBackend().files(plan))
    assert made == {OTHER_ENGINE_FILE}
    assert (out / OTHER_ENGINE_FILE).stat().st_size > 0


def test_one_engine_for_some_gpus_comes_with_a_script_for_the_others(tmp_path, checkpoint):
    folder = checkpoint()
    plan = plan_for(folder, targets=[90, 120])
    compile_ = partial(RtxBackend().compile, folder, plan=plan, report=silent, log=tmp_path / "compile.log")
    out = Store(tmp_path / "store").produce(Stage("compile", {}, lambda out: compile_(out=out))).path
    facts = read_manifest(out).facts
    assert (facts["engine_sms"], facts["other_sms"]) == ([120], [90])
    assert {ENGINE_FILE, SCRIPT_FILE, PROFILES_FILE} <= {path.name for path in out.iterdir()}
    (out / OTHER_ENGINE_FILE).write_bytes(b"what the script makes there")
    assert verify_folder(out)[1] == []
    (out / "stray.engine").write_bytes(b"")
    assert [each.file for each in verify_folder(out)[1]] == [str(out / "stray.engine")]


@pytest.mark.parametrize("name", [PROFILES_FILE, SCRIPT_FILE])
def test_a_script_for_other_gpus_that_is_not_there_is_told(tmp_path, checkpoint, name):
    folder, out = checkpoint(), tmp_path / "engine"
    out.mkdir()
    RtxBackend().compile(folder, out, plan_for(folder, gpu="h100-sxm"), silent, tmp_path / "compile.log")
    assert inspect(out).problems == ()
    os.truncate(out / name, 0)
    assert [each.message for each in inspect(out).problems] == ["the file is empty"]
    (out / name).unlink()
    assert [each.message for each in inspect(out).problems] == ["the file is missing"]


@pytest.mark.parametrize(("key", "value"), [("offset", "abc"), ("length", "")])
def test_a_weight_whose_place_is_no_number_is_told(tmp_path, checkpoint, key, value):
    folder, out = checkpoint(), tmp_path / "engine"
    out.mkdir()
    plan = plan_for(folder, backend="onnx", gpu=None, threads=2)
    OnnxBackend().compile(folder, out, plan, silent, tmp_path / "compile.log")
    model = onnx.load(str(out / "model.onnx"), load_external_data=False)
    tensor = next(each for each in model.graph.initializer if each.external_data)
    next(each for each in tensor.external_data if each.key == key).value = value
    (out / "model.onnx").write_bytes(model.SerializeToString())
    (problem,) = inspect(out).problems
    assert problem.message.startswith("a weight's place is no place")


def test_the_graph_alone_is_an_engine_for_onnx_runtime(tmp_path, checkpoint):
    folder = checkpoint("sq-qdq")
    plan = plan_for(folder, backend="onnx", gpu=None, threads=2)
    out = tmp_path / "engine"
    out.mkdir()
    OnnxBackend().compile(folder, out, plan, silent, tmp_path / "compile.log")
    assert {path.name for path in out.iterdir()} == set(OnnxBackend().files(plan))
    config = json.loads((out / "config.json").read_text())
    assert (config["backend"], config["runtime"]) == ("onnx", {"threads": 2})
    assert config["graph"] | {"dtype": "float32", "slots": 4, "capacity_tokens": 48} == config["graph"]
    assert config["graph"]["chunk_tokens"] == LIMITS["max_num_tokens"]
