"""Hugging Face folders: what is missing, damaged or unsafe is named before anything is read."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import ContractError, InputError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize {}\n"
SHARD = "model-0000{}-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def refusal(folder, error=InputError) -> str:
    with pytest.raises(error) as caught:
        HfCheckpoint.open(folder)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_one_file_and_several_hold_the_same(tiny_llama):
    one, three = (HfCheckpoint.open(tiny_llama(name=str(shards), shards=shards)) for shards in (1, 3))
    assert one.config == three.config
    assert one.tensors.keys() == three.tensors.keys()
    for name, info in one.tensors.items():
        assert info.read().tobytes() == three.tensors[name].read().tobytes()


def test_the_tokenizer_is_there_or_none(tiny_llama):
    folder = tiny_llama()
    assert HfCheckpoint.open(folder).tokenizer_file is None
    (folder / "tokenizer.json").write_text("{}")
    assert HfCheckpoint.open(folder).tokenizer_file == folder / "tokenizer.json"


def test_every_pointer_is_listed_with_the_size_it_stands_for(tiny_llama):
    folder = tiny_llama(shards=3)
    for number in (1, 3):
        (folder / SHARD.format(number)).write_text(POINTER.format(5_000_000_000))
    (folder / "tokenizer.json").write_text(POINTER.format(9_000_000))
    text = refusal(folder)
    assert f"{SHARD.format(1)} (5,000,000,000 bytes), {SHARD.format(3)} (5,000,000,000 bytes)" in text
    assert "tokenizer.json (9,000,000 bytes)" in text
    assert "git lfs pull" in text


def test_dead_links_are_listed_with_what_they_name(tiny_llama):
    folder = tiny_llama()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../blobs/4d7a")
    (folder / "tokenizer.json").symlink_to("../blobs/5e8b")
    (folder / "README.md").symlink_to("nowhere")
    text = refusal(folder)
    assert "not there: model.safetensors -> ../blobs/4d7a, tokenizer.json -> ../blobs/5e8b\n" in text
    assert "cp -rL" in text


def test_missing_shards_are_listed(tiny_llama):
    folder = tiny_llama(shards=3)
    (folder / SHARD.format(2)).unlink()
    assert f"1 of 3 files are missing: {SHARD.format(2)}" in refusal(folder)


def test_a_tensor_that_the_index_promises_must_be_there(tiny_llama):
    folder = tiny_llama(shards=3)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.extra.weight"] = SHARD.format(1)
    (folder / INDEX).write_text(json.dumps(index))
    assert f"not in the file that the index names: model.extra.weight ({SHARD.format(1)})" in refusal(folder)


def test_a_tensor_in_two_shards_is_refused(tiny_llama):
    folder = tiny_llama(shards=3)
    (folder / SHARD.format(2)).write_bytes((folder / SHARD.format(1)).read_bytes())
    assert f"is in two files: {SHARD.format(1)} and {SHARD.format(2)}" in refusal(folder)


def test_an_index_may_not_leave_its_folder(tiny_llama):
    folder = tiny_llama(shards=3)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    assert "outside of its folder: ../secret.safetensors" in refusal(folder)


def test_pickles_are_refused_with_the_way_out(tiny_llama):
    folder = tiny_llama()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    text = refusal(folder)
    assert "pickles (pytorch_model.bin)" in text
    assert "safe_serialization=True" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_damaged_config_is_named(tiny_llama, content, message):
    config = tiny_llama() / "config.json"
    config.unlink() if content is None else config.write_bytes(content)
    text = refusal(config.parent)
    assert f"{config}: {message}" in text


@pytest.mark.parametrize(
    ("name", "key"), [("config.json", "rms_norm_eps"), (INDEX, "model.norm.weight")], ids=["config", "index"]
)
def test_a_key_that_is_there_twice_is_named(tiny_llama, name, key):
    path = tiny_llama(shards=3) / name
    path.write_text(path.read_text().replace(f'"{key}"', f'"{key}": "another", "{key}"'))
    assert f"{path}: names twice: {key}" in refusal(path.parent)


def test_a_byte_order_mark_is_no_part_of_a_config(tiny_llama):
    folder = tiny_llama()
    config, path = HfCheckpoint.open(folder).config, folder / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert HfCheckpoint.open(folder).config == config


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_is_not_waited_for(tiny_llama, name):
    path = tiny_llama() / name
    path.unlink()
    os.mkfifo(path)
    assert f"{path}: is not a file" in refusal(path.parent)


def test_weights_that_are_not_read_are_told(tiny_llama):
    three, one = tiny_llama(shards=3), tiny_llama(name="one")
    (three / "model-00004-of-00004.safetensors").write_bytes((three / SHARD.format(1)).read_bytes())
    (three / "consolidated.safetensors").write_bytes(b"")
    (warning,) = HfCheckpoint.open(three).warnings
    assert "not read: model-00004-of-00004.safetensors; the model is in model-00001" in warning.message
    for path in three.glob("model*"):
        (one / path.name).write_bytes(path.read_bytes())
    (warning,) = HfCheckpoint.open(one).warnings
    assert (
        f"{SHARD.format(3)}, model-00004-of-00004.safetensors; the model is in model.saf" in warning.message
    )


def test_without_a_key_the_type_of_all_tensors_is_the_models(tiny_llama):
    def edit(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)

    one = HfCheckpoint.open(tiny_llama(torch_dtype=None, dtype=np.float16))
    assert (one.config.dtype, one.warnings) == ("float16", ())
    mixed = HfCheckpoint.open(tiny_llama(name="mixed", torch_dtype=None, dtype=np.float16, edit=edit))
    assert (mixed.config.dtype, [each.key for each in mixed.warnings]) == ("float32", ["dtype"])


def test_config_problems_name_the_file(tiny_llama):
    folder = tiny_llama(sliding_window=64)
    assert f"{folder / 'config.json'}: sliding_window: attention reaches back 64" in refusal(
        folder, ContractError
    )


def test_no_folder_and_no_weights_are_different_things(tiny_llama, tmp_path):
    assert "no such folder" in refusal(tmp_path / "nowhere")
    folder = tiny_llama()
    (folder / "model.safetensors").unlink()
    assert "there are no weights" in refusal(folder)


@pytest.mark.parametrize("block", [{"bits": 4, "group_size": 64}, {"quant_method": "hqq"}, "int4"])
@pytest.mark.parametrize("key", ["quantization", "quantization_config", "compression_config"])
def test_quantization_that_is_not_known_is_named(tiny_llama, key, block):
    assert f"{key}: the checkpoint is quantized" in refusal(tiny_llama(**{key: block}))
