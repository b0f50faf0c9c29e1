"""Verbs at work on a tiny model: what they write, what they refuse, and their exit codes."""

import json
import sys

import pytest
import yaml

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture

LIMITS = {"max_batch_size": 4, "max_seq_len": 64, "max_num_tokens": 64}


@pytest.fixture
def contract(tmp_path, tiny_llama):  # noqa: F811 - the fixture
    """Write a contract beside its model; keyword arguments change the model."""

    def write(**changes):
        (tiny_llama(name="model", **changes) / "tokenizer.json").write_text("{}")
        content = {
            "name": "tiny",
            "model": {"source": "model"},
            "engine": {"limits": LIMITS},
            "classes": {"only": {"priority": 1, "ttft_ms": 100, "default_output_tokens": 8}},
        }
        path = tmp_path / "contract.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def stored(tmp_path):
    """Return the products in the store."""
    return sorted(path.parent.name for path in (tmp_path / "home").glob("*/*/trtkit-manifest.json"))


def test_convert_then_verify(trtkit, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "checkpoint"
    assert trtkit("convert", tiny_llama(), "-o", out)[0] == 0
    code, text, _ = trtkit("verify", out)
    assert (code, text) == (0, f"{out}: a sound checkpoint\n")


def test_verify_finds_what_is_wrong_and_exits_6(trtkit, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "checkpoint"
    trtkit("convert", tiny_llama(), "-o", out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    code, _, err = trtkit("verify", out)
    assert code == 6
    assert "transformer.layers.1.mlp.proj.weight" in err
    assert "128" in err


def test_verify_compares_products_with_their_manifest(trtkit, contract, tmp_path):
    trtkit("build", contract())
    (weights,) = (tmp_path / "home").glob("convert/*/checkpoint/rank0.safetensors")
    product = weights.parent.parent
    assert trtkit("verify", product)[:2] == (0, f"{product}: a sound build product\n")
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    code, _, err = trtkit("verify", product)
    assert code == 6
    assert "SHA-256" in err


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
    assert "ensemble/config.pbtxt: differs" in err
    assert trtkit("repo", path, "-o", out)[0] == 0
    assert trtkit("repo", path, "-o", out, "--check")[0] == 0
    assert (out / "NOTES").read_text() == "mine"


def test_a_build_without_a_tokenizer_says_so_before_any_work(trtkit, contract, tmp_path):
    path = contract()
    (tmp_path / "model" / "tokenizer.json").unlink()
    code, _, err = trtkit("build", path)
    assert code == 2
    assert "tokenizer.json" in err
    assert stored(tmp_path) == []


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
