"""Models on a hub: fetched when asked for by name, from a real server that speaks its endpoints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.hub_server import COMMIT, Hub, serve
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import silent
from trtkit.checkpoint.source import find, resolve
from trtkit.errors import EnvironmentLacks, InputError, TrtkitError

pytest.importorskip("huggingface_hub")

PINNED = f"hf:acme/tiny@{COMMIT}"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    from huggingface_hub import constants

    folder = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def hub(tiny_llama, tmp_path, cache, monkeypatch):
    """A repository with everything that publishers put beside a model."""
    from huggingface_hub import constants

    folder = tiny_llama(shards=2)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_text("{}")
    (folder / "onnx").mkdir()
    for name in (
        "pytorch_model.bin", "modeling_tiny.py", "consolidated.safetensors", "README.md", "onnx/model.json"
    ):  # fmt: skip
        (folder / name).write_bytes(b"not to be fetched")
    with serve(Hub("acme/tiny", folder)) as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        # The client of the hub keeps one connection: it would be left open at a port that is given away again.
        yield server
        close_client()


def close_client() -> None:
    from huggingface_hub import close_session

    close_session()


def get(source: str, tmp_path: Path, steps: list | None = None) -> Path:
    def note(*step: object) -> None:
        if steps is not None:
            steps.append(step)

    return resolve(source, tmp_path, tmp_path / "store", note)


def test_only_what_a_conversion_reads_is_fetched(hub, cache, tmp_path):
    folder = get("hf:acme/tiny", tmp_path)
    assert folder.is_relative_to(cache)
    assert sorted(path.name for path in folder.rglob("*")) == [
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    original = HfCheckpoint.open(hub.folder).tensors
    found = HfCheckpoint.open(folder).tensors
    assert {name: info.read().tobytes() for name, info in found.items()} == {
        name: info.read().tobytes() for name, info in original.items()
    }


def test_the_default_branch_is_said_and_kept_by_its_commit(hub, tmp_path):
    steps: list = []
    folder = get("hf:acme/tiny", tmp_path, steps)
    assert folder.name == COMMIT
    assert {stage for stage, *_ in steps} == {f"fetch {PINNED}"}
    done = [bytes_done for _, bytes_done, _ in steps]
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert (done[0], done[-1], steps[-1][2]) == (0, total, total)


def test_a_commit_that_is_there_asks_nobody(hub, tmp_path):
    assert find(PINNED, tmp_path, tmp_path) is None
    folder = get(PINNED, tmp_path)
    hub.asked.clear()
    assert get(PINNED, tmp_path) == find(PINNED, tmp_path, tmp_path) == folder
    assert hub.asked == []


def test_a_damaged_snapshot_is_mended(hub, tmp_path):
    folder = get(PINNED, tmp_path)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.resolve().unlink()
    shard.unlink()
    assert get(PINNED, tmp_path) == folder
    assert shard.is_file()


def test_offline_means_what_is_there(hub, tmp_path, monkeypatch):
    from huggingface_hub import constants

    folder = get("hf:acme/tiny@main", tmp_path)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert get(PINNED, tmp_path) == folder
    with pytest.raises(EnvironmentLacks, match=r"other is not in the cache.*\n.*HF_HUB_OFFLINE"):
        get("hf:acme/other", tmp_path)
    assert hub.asked == []


def test_a_gated_model_needs_the_token_and_gets_it(hub, tmp_path, monkeypatch):
    hub.token = "hf_right"
    with pytest.raises(EnvironmentLacks, match=r"is gated.*\n.*/acme/tiny, then set HF_TOKEN"):
        get("hf:acme/tiny", tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert get("hf:acme/tiny", tmp_path).name == COMMIT


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("hf:acme/unknown", InputError, r"has no such model\n.*a private model needs HF_TOKEN"),
        ("hf:acme/tiny@v9", InputError, "there is no such revision"),
        ("hf:tiny", InputError, r"names no model on a hub\n.*hf:ORG/NAME@REVISION"),
        ("hf:acme/tiny@", InputError, "names no model on a hub"),
        ("hf:acme/../tiny", InputError, "names no model on a hub"),
    ],
)
def test_a_name_that_is_wrong_is_told(hub, tmp_path, source, error, message):
    with pytest.raises(error, match=message):
        get(source, tmp_path)


@pytest.mark.parametrize(("status", "message"), [(500, "answered 500"), (401, "answered 401.*\n.*HF_TOKEN")])
def test_a_hub_that_fails_is_told(hub, tmp_path, status, message):
    hub.failure = status
    with pytest.raises(TrtkitError, match=message) as caught:
        get("hf:acme/tiny", tmp_path)
    assert caught.value.exit_code == 4


def test_no_network_is_told_with_the_way_around(cache, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(
        EnvironmentLacks, match=r"could not be fetched from .*\n.*`hf download acme/tiny --local-dir"
    ):
        get("hf:acme/tiny", tmp_path)


def test_a_full_disk_is_told_before_anything_is_fetched(hub, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(EnvironmentLacks, match=r"takes [\d,]+ bytes and 50,000 are free\n.*HF_HUB_CACHE"):
        get("hf:acme/tiny", tmp_path)
    assert not [path for path in hub.asked if path.endswith("-of-00002.safetensors")]


@pytest.mark.parametrize(
    ("remove", "add", "message"),
    [
        ("model*", (), r"lacks model.safetensors; it has consolidated.safetensors, pytorch_model.bin"),
        ("model-00002*", (), "lacks model-00002-of-00002.safetensors"),
        ("[cm]*", ("adapter_config.json", "adapter_model.safetensors"), "merged into its model first"),
    ],
)
def test_a_repository_without_the_model_is_refused_before_anything_is_fetched(
    hub, tmp_path, remove, add, message
):
    for path in hub.folder.glob(remove):
        path.unlink()
    for name in add:
        (hub.folder / name).write_bytes(b"{}")
    with pytest.raises(InputError, match=message):
        get("hf:acme/tiny", tmp_path)
    assert not [path for path in hub.asked if path.endswith("-of-00002.safetensors")]


def test_the_command_line_honours_the_environment(hub, tmp_path):
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "elsewhere"),
        "HF_TOKEN": "hf_right",
        "TRTKIT_HOME": str(tmp_path / "home"),
    }
    hub.token = "hf_right"
    command = [sys.executable, "-m", "trtkit", "convert", "hf:acme/tiny", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"fetch {PINNED}" in done.stderr
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architecture"] == "LlamaForCausalLM"


def test_nothing_is_fetched_unless_asked_for_by_prefix(hub, tmp_path):
    with pytest.raises(InputError, match=r"never fetches one silently\n.*hf:acme/tiny"):
        resolve("acme/tiny", tmp_path, tmp_path / "store", silent)
    assert hub.asked == []
