import json
import shutil
import socket

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.architectures.variants import VARIANTS
from tests.checkpoint.conftest import save
from tests.quantize.calibrated import DENSE, build, prepared, seen_by_transformers
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.safetensors import read_header, read_metadata
from trtkit.errors import ContractError, InputError
from trtkit.quantize.calibrate.purpose import Unreached
from trtkit.quantize.histogram import SHIFT


@pytest.fixture
def model(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("calibration went to the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return lambda name: build(tmp_path / name, VARIANTS[name])


def ranges_of(folder, **options):
    out = folder.parent / "ranges.safetensors"
    prepared(folder, **options).run(out)
    return {name: info.read() for name, info in read_header(out).items()}


@pytest.mark.parametrize("name", DENSE)
def test_ranges_are_what_goes_through_the_whole_model(name, model):
    folder = model(name)
    found = ranges_of(folder)
    seen = seen_by_transformers(name, folder, prepared(folder))
    if name == "gpt-neox":  # checkpoints call the head otherwise than transformers' module
        seen = {key.replace("lm_head", "embed_out"): values for key, values in seen.items()}
    for key, values in seen.items():
        # Of the cache the file has every head's channels, `seen` the largest of all heads.
        recorded = found[key].reshape(-1, len(values)).max(axis=0)
        np.testing.assert_allclose(recorded, values.numpy(), rtol=2e-5, atol=1e-6, err_msg=key)
    assert {key[:-2] for key in found if "_cache" not in key} == {
        key[:-2] for key in seen if "_cache" not in key
    }


@pytest.mark.parametrize(
    "changes", [{"dtype": "torch.bfloat16"}, {"torch_dtype": "torch.float32", "dtype": None}]
)
def test_a_config_may_name_its_dtype_as_torch_does(model, tmp_path, changes):
    folder = shutil.copytree(model("llama"), tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    assert ranges_of(folder)


def test_what_transformers_does_not_take_is_an_error_of_the_source(model, tmp_path):
    folder = shutil.copytree(model("llama"), tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"initializer_range": "x"}))
    with pytest.raises(InputError, match="transformers cannot load it"):
        ranges_of(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.embed_tokens.weight",
        "model.layers.0.mlp.down_proj.weight",
    ],
)
def test_ranges_of_a_sibling_are_refused_also_for_the_cache_alone(name, model, tmp_path, write):
    folder = model("llama")
    ranges_of(folder)
    file, ranges = folder / "model.safetensors", tmp_path / "ranges.safetensors"
    tensors = {key: np.array(info.read()) for key, info in read_header(file).items()}
    save(file, {key: values.astype(ml_dtypes.bfloat16) for key, values in tensors.items()})
    write(folder, "fp8", ranges=ranges)
    save(file, tensors | {name: tensors[name] + np.float32(0.5)})
    with pytest.raises(ContractError, match="norms, biases, embeddings or weights were others"):
        write(folder, "none", kv_cache="int8", ranges=ranges)


def test_ranges_of_another_rotation_are_refused(model, tmp_path, write):
    folder = model("llama")
    ranges_of(folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] |= {"rope_theta": 5e5}
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 2, "dtype": "torch.float32"}))
    with pytest.raises(ContractError, match=r"rotary_base was 10000\.0, and the source's is 500000\.0"):
        write(folder, "fp8", ranges=tmp_path / "ranges.safetensors")


def test_rows_of_weights_are_recorded(model):
    folder = model("gpt2")
    found = ranges_of(folder)
    weight = read_header(folder / "model.safetensors")["transformer.h.0.mlp.c_fc.weight"].read()
    np.testing.assert_array_equal(found["transformer.h.0.mlp.c_fc|w"], np.abs(weight).max(axis=0))


def test_keys_are_recorded_before_and_after_rotation(model):
    found = ranges_of(model("llama"))
    prefix = "model.layers.1"
    np.testing.assert_array_equal(found[f"{prefix}.k_cache|x"], found[f"{prefix}.self_attn.k_proj|y"])
    np.testing.assert_array_equal(found[f"{prefix}.v_cache|y"], found[f"{prefix}.self_attn.v_proj|y"])
    assert not np.array_equal(found[f"{prefix}.k_cache|x"], found[f"{prefix}.k_cache|y"])


def test_every_value_that_a_cache_would_keep_is_counted(model):
    folder = model("llama")
    found, config = ranges_of(folder), HfCheckpoint.open(folder).config
    counts = found["model.layers.1.kv_cache|h"]
    assert counts.sum() == prepared(folder).samples.tokens * 2 * config.num_kv_heads * config.head_size
    largest = max(found[f"model.layers.1.{name}_cache|y"].max() for name in "kv")
    assert np.flatnonzero(counts)[-1] == np.float32(largest).view(np.uint32) >> SHIFT


def test_keys_before_rotation_are_those_after_their_norm(model):
    folder = model("qwen3")
    found = ranges_of(folder)
    assert not np.allclose(found["model.layers.0.k_cache|x"], found["model.layers.0.self_attn.k_proj|y"])
    # Rotation keeps the length of each pair of channels.
    before, after = (found[f"model.layers.0.k_cache|{part}"].max() for part in "xy")
    assert after <= before * 2**0.5 + 1e-5


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe"])
def test_experts_have_ranges_of_their_own_tokens(name, model):
    folder = model(name)
    found = ranges_of(folder, unreached=Unreached.BORROW)
    inputs = [found[key] for key in found if ".experts." in key and key.endswith("|x")]
    assert len(inputs) == 2 * 4 * 3
    first = [values for values in inputs if len(values) == 64]
    assert any(not np.array_equal(first[0], other) for other in first[1:])


def narrow_router(folder):
    """Let every token go to the same two experts, which are the last ones."""
    path = folder / "model.safetensors"
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    for key in tensors:
        if key.endswith("block_sparse_moe.gate.weight"):
            tensors[key] = np.zeros_like(tensors[key])
    save_file(tensors, path, metadata={"format": "pt"})


def test_experts_that_no_token_came_to_abort_by_name(model):
    folder = model("mixtral")
    narrow_router(folder)
    with pytest.raises(InputError, match=r"6 of 12 linear layers of experts: model") as error:
        ranges_of(folder)
    assert "--unreached borrow" in error.value.hint


def test_experts_that_no_token_came_to_borrow_when_asked(model):
    folder = model("mixtral")
    narrow_router(folder)
    found = ranges_of(folder, unreached=Unreached.BORROW)
    expert = "model.layers.0.block_sparse_moe.experts.{}.w2|x".format
    np.testing.assert_array_equal(found[expert(1)], np.maximum(found[expert(2)], found[expert(3)]))
    told = json.loads(read_metadata(folder.parent / "ranges.safetensors")["trtkit"])
    assert "model.layers.0.block_sparse_moe.experts.1.w2" in told["borrowed"]


def poison(folder, name, value):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[5] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(value, model):
    folder = model("llama")
    poison(folder, "model.layers.1.mlp.up_proj.weight", value)
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN or infinity"):
        ranges_of(folder)
    assert not (folder.parent / "ranges.safetensors").exists()


def test_an_activation_that_overflows_names_layer_and_sample(model):
    folder = model("llama")
    poison(folder, "model.layers.0.self_attn.v_proj.weight", 3e38)
    with pytest.raises(
        InputError, match=r"v_proj is NaN or infinite in the sample .*texts\.txt, tokens 0 to"
    ):
        ranges_of(folder)


def test_a_killed_run_goes_on_with_its_layer_and_gives_the_same_bytes(model):
    folder = model("llama")
    out, whole = folder.parent / "out.safetensors", folder.parent / "whole.safetensors"

    def kill(_, done, __):
        if done == 5:  # the second sample of the second layer
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(folder).run(out, kill)
    assert not out.exists()
    report = prepared(folder).run(out)
    prepared(folder).run(whole)
    assert report.resumed_at_layer == 1
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        "llama",
        "out.safetensors",
        "texts.txt",
        "whole.safetensors",
    ]


def test_other_samples_do_not_go_on_where_these_ended(model):
    folder = model("llama")
    out = folder.parent / "out.safetensors"

    def kill(_, done, __):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(folder).run(out, kill)
    assert prepared(folder, samples=2).run(out).resumed_at_layer == 0


@pytest.mark.parametrize("lost", ["hidden-1", "next.json", "key.json", "stage-00000.safetensors"])
def test_a_run_whose_state_lost_something_begins_again(model, lost):
    folder = model("llama")
    out, whole = folder.parent / "out.safetensors", folder.parent / "whole.safetensors"

    def kill(_, done, __):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(folder).run(out, kill)
    file = folder.parent / ".out.safetensors.calibration" / lost
    file.write_bytes(file.read_bytes()[:-7])
    assert prepared(folder).run(out).resumed_at_layer == 0
    prepared(folder).run(whole)
    assert out.read_bytes() == whole.read_bytes()


def test_the_recorded_ranges_of_a_reference_conversion_have_the_same_names(model):
    names = {key for key in ranges_of(model("llama")) if "_cache" not in key}
    modules = [f"self_attn.{each}_proj" for each in "qkvo"] + [
        f"mlp.{each}_proj" for each in ("gate", "up", "down")
    ]
    everything = [f"model.layers.{layer}.{module}" for layer in range(2) for module in modules] + ["lm_head"]
    assert names == {f"{module}|{part}" for module in everything for part in "xyw"}


def test_sources_that_are_quantized_are_refused(model):
    folder = model("llama")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="quantized already"):
        prepared(folder)


def test_torch_is_not_left_with_parameters_on_meta(model):
    ranges_of(model("llama"))
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"
