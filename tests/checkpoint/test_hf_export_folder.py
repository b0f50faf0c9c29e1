"""Exported folders as a whole: which files they hold, what is refused, and that nothing is left half-way."""

from __future__ import annotations

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint import test_phi3
from tests.checkpoint.exported import export, plainly, read
from tests.checkpoint.family import write_model
from tests.checkpoint.quantized import quantized
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export import convert_to_hf, export_hf
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.errors import InputError
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.fp8_rowwise import Fp8Rowwise


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_plain_export_is_the_source_in_the_new_data_type(tiny_llama, tmp_path, dtype):
    source = tiny_llama(dtype=np.float32, torch_dtype="float32", tie_word_embeddings=True)
    checkpoint = plainly(source, tmp_path / "trtllm", dtype=dtype)
    tensors, before = export(checkpoint, source, tmp_path / "out"), read(source)
    assert {name: value.tobytes() for name, value in tensors.items()} == {
        name: value.astype(getattr(ml_dtypes, dtype, dtype)).tobytes() for name, value in before.items()
    }
    config = json.loads((source / "config.json").read_text())
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == config | {"torch_dtype": dtype}
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()


def test_the_publishers_files_come_along_and_other_weights_do_not(tiny_llama, tmp_path):
    source = tiny_llama()
    kept = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "generation_config.json", "LICENSE")
    for name in (*kept, "chat_template.jinja", "pytorch_model.bin", "training_args.bin", "rank0.safetensors"):
        (source / name).write_text("{}")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    export(plainly(source, tmp_path / "trtllm"), source, tmp_path / "out")
    names = {
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    weights = {"config.json", "model.safetensors"}
    assert names == {*kept, *weights, "chat_template.jinja", "additional_chat_templates/tools.jinja"}


@given(limit=st.integers(1, 400_000))
def test_files_are_bounded_and_the_index_finds_every_tensor(tmp_path_factory, limit):
    base = tmp_path_factory.mktemp("sharded")
    source = write_model(base / "hf", test_phi3.PHI3, test_phi3.shapes(test_phi3.PHI3))
    checkpoint = plainly(source, base / "trtllm")
    whole = export(checkpoint, source, base / "one")
    tensors = export(checkpoint, source, base / "out", max_shard_bytes=limit)
    assert {name: value.tobytes() for name, value in tensors.items()} == {
        name: value.tobytes() for name, value in whole.items()
    }
    files = {}
    for info in HfCheckpoint.open(base / "out").tensors.values():
        files.setdefault(info.path.name, []).append(info.nbytes)
    assert all(sum(sizes) <= limit or len(sizes) == 1 for sizes in files.values())


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_algo": "W8A16"}, "W8A16 cannot be exported: there are no INT8 weights"),
        ({"quant_algo": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"}, "there are no INT8 weights"),
        ({"quant_algo": "W4A16_GPTQ"}, "the layout of one GPU family"),
        ({"quant_algo": "NVFP4"}, "no such form"),
        ({"quant_algo": "W4A16_AWQ", "has_zero_point": True}, "no zero points"),
        ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "clamp_val": [-9, 9]}, "not clamped"),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, "there is no INT8 KV cache"),
        ({"quant_algo": None, "kv_cache_quant_algo": "FP8"}, "beside plain weights"),
    ],
)
def test_what_has_no_form_is_refused_with_the_reason(tiny_llama, tmp_path, quantization, message):
    source = tiny_llama()
    checkpoint = plainly(source, tmp_path / "trtllm")
    asked = replace(checkpoint, config={**checkpoint.config, "quantization": quantization})
    with pytest.raises(InputError, match=message) as caught:
        export(asked, source, tmp_path / "out")
    assert "fix: " in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_divided_checkpoint_is_refused(tiny_llama, tmp_path):
    source = tiny_llama()
    with pytest.raises(InputError, match="is for 2 ranks"):
        export(plainly(source, tmp_path / "trtllm", parallelism=Parallelism(tp=2)), source, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 5e5}, "rotary_base differ"),
        (
            {"edit": lambda tensors: tensors["lm_head.weight"].__setitem__(0, 1)},
            "lm_head.weight differs from lm_head",
        ),
    ],
)
@pytest.mark.parametrize("algorithm", ["FP8", None])
def test_another_source_than_the_checkpoint_was_made_from_is_refused(
    tiny_llama, tmp_path, algorithm, changes, message
):
    source, out = tiny_llama(), tmp_path / "trtllm"
    checkpoint = quantized(source, out, algorithm) if algorithm else plainly(source, out)
    with pytest.raises(InputError, match=message):
        export(checkpoint, tiny_llama(name="other", **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_replaced(tiny_llama, tmp_path):
    source = tiny_llama()
    checkpoint = plainly(source, tmp_path / "trtllm")
    before = sorted(path.name for path in source.iterdir())
    with pytest.raises(InputError, match="holds files, which would be lost"):
        export_hf(checkpoint, HfCheckpoint.open(source), source)
    assert sorted(path.name for path in source.iterdir()) == before


def test_a_checkpoint_that_does_not_verify_is_refused(tiny_llama, tmp_path):
    source = tiny_llama()
    checkpoint = quantized(source, tmp_path / "trtllm", "FP8")
    config = dict(checkpoint.config) | {"quantization": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}}
    (tmp_path / "trtllm" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="per_channel_scale: the tensor is missing"):
        export(TrtllmCheckpoint.open(tmp_path / "trtllm"), source, tmp_path / "out")


def test_an_export_that_stops_half_way_leaves_nothing(tiny_llama, tmp_path):
    source = tiny_llama()
    checkpoint = plainly(source, tmp_path / "trtllm")

    def stop(stage, done, total):
        assert done < total / 2, "half-way"

    with pytest.raises(AssertionError, match="half-way"):
        export(checkpoint, source, tmp_path / "out", progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "trtllm"]


@pytest.mark.parametrize(
    ("recipe", "dtype"),
    [
        (Plain(quant_plan("none")), "float16"),
        (Fp8Rowwise(quant_plan("fp8-rowwise"), clamp=None), "float8_e4m3fn"),
    ],
    ids=["plain", "quantizing"],
)
def test_one_step_leaves_the_export_alone(tiny_llama, tmp_path, recipe, dtype):
    source, stages = HfCheckpoint.open(tiny_llama()), []

    def progress(stage, done, total):
        stages.append(stage)

    report = convert_to_hf(source, tmp_path / "out", dtype="float16", recipe=recipe, progress=progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]
    assert list(dict.fromkeys(stages)) == ["convert", "export"]
    tensors = read(tmp_path / "out")
    assert tensors["model.layers.0.mlp.up_proj.weight"].dtype == dtype
    assert tensors["model.norm.weight"].dtype == np.float16
    assert (report.tensors, report.bytes_written) == (len(tensors), sum(v.nbytes for v in tensors.values()))


def test_one_step_refuses_a_recipe_without_a_form_before_it_works(tiny_llama, tmp_path):
    source, stages = HfCheckpoint.open(tiny_llama()), []
    with pytest.raises(InputError, match="W8A16 cannot be exported"):
        convert_to_hf(
            source,
            tmp_path / "out",
            dtype="bfloat16",
            recipe=Plain(quant_plan("int8-wo")),
            progress=lambda stage, *_: stages.append(stage),
        )
    assert stages == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]
