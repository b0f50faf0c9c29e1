"""An engine that this machine's GPU does not run is refused before anything is started."""

import json
import sys

import pytest
from typer.testing import CliRunner

from trtkit.cli import app
from trtkit.contract import Contract
from trtkit.engine.installed import install_hint
from trtkit.engine.slots import here
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.flow.up import check_served_here


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """A GPU of SM 120 unless a test has another."""

    def put(sm):
        monkeypatch.setattr(here, "find_sm", lambda: sm)

    put(120)
    return put


@pytest.fixture
def repository(slots_dir, tmp_path):
    """A repository with an engine folder of the back end rtx, as far as it is read before it is served."""
    config = json.loads((slots_dir / "config.json").read_text())
    engine = tmp_path / "repository" / "tensorrt_llm" / "1" / "engine"
    engine.mkdir(parents=True)
    (engine.parents[1] / "config.pbtxt").write_text("")

    def write(tokens=0, **runtime):
        config["backend"] = "rtx"
        config["graph"]["capacity_tokens"] += tokens
        config["runtime"] = {"engine": "model.engine", "engine_sms": [80, 89]} | runtime
        (engine / "config.json").write_text(json.dumps(config))
        return tmp_path / "repository"

    return write


@pytest.mark.parametrize(
    ("sm", "said", "way_out"),
    [
        (120, "compiled for SM 80, 89, and the GPU here is SM 120", "add 120 to engine.targets"),
        (90, "compiled for SM 80, 89, and the GPU here is SM 90", "serve it on one of those"),
    ],
)
def test_another_gpu_is_named_with_what_can_be_done(repository, gpu, sm, said, way_out):
    gpu(sm)
    with pytest.raises(EnvironmentLacks, match=said) as caught:
        here.check_repository(repository())
    assert way_out in caught.value.hint


def test_a_gpu_that_it_is_compiled_for_passes(repository, gpu):
    gpu(89)
    here.check_repository(repository())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": None, "engine_sms": []}, "no engine that was compiled for any GPU"),
        ({"tokens": 1}, "no multiple of 256"),
    ],
)
def test_what_no_gpu_would_run_is_said_before_a_gpu_is_looked_for(repository, gpu, changes, said):
    gpu(None)
    with pytest.raises(InputError, match=said):
        here.check_repository(repository(**changes))


def test_serve_says_it_and_starts_nothing(repository, tmp_path):
    log = tmp_path / "triton.log"
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    result = CliRunner().invoke(app, ["serve", str(repository()), "--log-file", str(log), *ports])
    assert "the GPU here is SM 120" in str(result.exception)
    assert not log.exists()


@pytest.mark.parametrize(
    ("backend", "missing", "said", "extras"),
    [
        ("onnx", ["onnxruntime"], "onnxruntime", "onnx"),
        ("cpu", ["openvino_genai"], "openvino-genai", "cpu"),
        ("rtx", ["tensorrt_rtx", "cuda.bindings"], "tensorrt-rtx, cuda-bindings", "rtx"),
        ("onnx", ["onnxruntime", "tokenizers"], "onnxruntime, tokenizers", "onnx,proxy"),
    ],
)
def test_packages_that_an_engine_needs_are_named_before_anything_starts(
    repository, monkeypatch, tmp_path, backend, missing, said, extras
):
    folder = repository()
    config = folder / "tensorrt_llm" / "1" / "engine" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"backend": backend}))
    tokenizer = folder / "preprocessing" / "1" / "tokenizer"
    tokenizer.mkdir(parents=True)
    (tokenizer / "tokenizer.json").write_text("{}")
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    log = tmp_path / "triton.log"
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    error = CliRunner().invoke(app, ["serve", str(folder), "--log-file", str(log), *ports]).exception
    assert (error.exit_code, error.hint) == (4, install_hint(*extras.split(",")))
    assert f"needs {said}, which is not installed" in error.message
    assert not log.exists()


def test_no_python_is_told_to_install_what_has_no_release_for_it(monkeypatch):
    assert install_hint("proxy", "onnx").endswith("pip install 'trtkit[proxy,onnx]'")
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    assert install_hint("onnx").startswith("with Python 3.11 or 3.12")
    assert install_hint("cpu") == "pip install 'trtkit[cpu]'"


def test_up_names_packages_before_it_builds(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    raw = {"name": "t", "model": {"source": "x"}, "classes": {"only": {"priority": 1, "ttft_ms": 500}}}
    with pytest.raises(EnvironmentLacks, match="onnxruntime"):
        check_served_here(Contract.model_validate(raw | {"engine": {"backend": "onnx"}}))


@pytest.mark.parametrize(
    ("gpu_name", "targets", "error"),
    [
        ("h100-sxm", [90, 100], InputError),
        ("h100-sxm", None, InputError),
        ("l40s", [89, 90], EnvironmentLacks),
        ("l40s", [89, 120], None),
        ("no-such-gpu", None, None),
    ],
)
def test_up_looks_before_it_builds(gpu_name, targets, error):
    engine = {"backend": "rtx", "gpu": gpu_name} | ({"targets": targets} if targets else {})
    raw = {"name": "t", "model": {"source": "x"}, "classes": {"only": {"priority": 1, "ttft_ms": 500}}}
    contract = Contract.model_validate(raw | {"engine": engine})
    if error is None:
        check_served_here(contract)
    else:
        with pytest.raises(error):
            check_served_here(contract)
