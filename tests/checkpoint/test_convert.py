"""Conversion: byte for byte what the reference writes, everything accounted for, whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.errors import ContractError, InputError
from trtkit.plan.types import QuantPlan


def converted(folder: Path, quantization: QuantPlan, *, dtype="bfloat16", out=None) -> TrtllmCheckpoint:
    out = out or folder.with_name("out")
    convert(HfCheckpoint.open(folder), out, dtype=dtype, recipe=Plain(quantization))
    return TrtllmCheckpoint.open(out)


def refusal(folder: Path, quantization: QuantPlan, error=InputError, **options) -> str:
    """Return the message, after making sure that nothing was left behind."""
    before = sorted(folder.parent.iterdir())
    with pytest.raises(error) as caught:
        converted(folder, quantization, **options)
    assert caught.value.exit_code == 2
    assert sorted(folder.parent.iterdir()) == before
    return str(caught.value)


def test_what_was_written_verifies(tiny_llama, plain):
    folder = tiny_llama(attention_bias=True, mlp_bias=True)
    assert verify(converted(folder, plain).folder) == []


def test_an_explicit_head_size_shapes_attention(tiny_llama, plain):
    checkpoint = converted(tiny_llama(head_dim=32), plain)
    assert checkpoint.info("transformer.layers.0.attention.qkv.weight").shape == ((4 + 2 * 2) * 32, 64)
    assert checkpoint.info("transformer.layers.0.attention.dense.weight").shape == (64, 128)
    assert checkpoint.config["head_size"] == 32


def test_biases_are_fused_like_their_weights(tiny_llama, plain):
    folder = tiny_llama(attention_bias=True)
    checkpoint, source = converted(folder, plain), HfCheckpoint.open(folder).tensors
    parts = [source[f"model.layers.1.self_attn.{name}_proj.bias"].read() for name in "qkv"]
    np.testing.assert_array_equal(
        checkpoint.tensor("transformer.layers.1.attention.qkv.bias"), np.concatenate(parts)
    )
    assert "transformer.layers.1.attention.dense.bias" in checkpoint


@pytest.mark.parametrize("saved_too", [False, True])
def test_a_tied_head_is_a_copy_of_the_embedding(tiny_llama, plain, saved_too):
    def edit(tensors):
        if saved_too:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    checkpoint = converted(tiny_llama(tie_word_embeddings=True, edit=edit), plain)
    head, embedding = (checkpoint.tensor(n) for n in ("lm_head.weight", "transformer.vocab_embedding.weight"))
    np.testing.assert_array_equal(head, embedding)


def test_a_tied_model_with_another_head_is_refused(tiny_llama, plain):
    def edit(tensors):
        tensors["lm_head.weight"] = -tensors["model.embed_tokens.weight"]

    text = refusal(tiny_llama(tie_word_embeddings=True, edit=edit), plain)
    assert "lm_head.weight differs from model.embed_tokens.weight" in text


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_values_too_small_for_a_type_are_refused_not_made_zero(tiny_llama, plain, dtype):
    def edit(tensors):
        name = "model.layers.1.mlp.up_proj.weight"
        tensors[name] = (tensors[name].astype("float32") * 1e-9).astype(dtype)
        tensors["model.norm.weight"][:40] = 0  # is zero to begin with

    folder = tiny_llama(edit=edit, dtype=dtype)
    text = refusal(folder, plain, dtype="float16")
    assert "model.layers.1.mlp.up_proj.weight: 100% of its values are too small for float16" in text
    assert verify(converted(folder, plain).folder) == []


@pytest.mark.parametrize(("dtype", "wider"), [("float16", "bfloat16"), ("bfloat16", "float32")])
def test_values_too_large_for_a_type_name_one_that_holds_them(tiny_llama, plain, dtype, wider):
    def edit(tensors):
        tensors["model.norm.weight"][0] = 3.4e38

    assert f"convert to {wider}" in refusal(tiny_llama(edit=edit, dtype=np.float32), plain, dtype=dtype)


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        (lambda name: f"module.{name}", "the names of the tensors begin with 'module.'"),
        (lambda name: name.removeprefix("model."), "the names of the tensors lack 'model.'"),
    ],
)
def test_names_that_all_differ_by_their_start_are_one_problem(tiny_llama, plain, rename, message):
    def edit(tensors):
        for name in list(tensors):
            tensors[rename(name)] = tensors.pop(name)

    text = refusal(tiny_llama(edit=edit), plain)
    assert message in text
    assert "is missing" not in text


MUTATIONS = {
    "rms_norm_eps": (1e-6, "norm_epsilon"),
    "rope_theta": (5e5, "rotary_base"),
    "rope_scaling": ({"type": "linear", "factor": 2.0}, "rotary_scaling"),
    "max_position_embeddings": (64, "max_position_embeddings"),
    "head_dim": (32, "head_size"),
    "attention_bias": (True, "attn_bias"),
    "mlp_bias": (True, "mlp_bias"),
    "tie_word_embeddings": (True, "tie_word_embeddings"),
    "num_key_value_heads": (4, "num_key_value_heads"),
    "hidden_act": ("gelu", None),
    "sliding_window": (32, None),
    "attn_logit_softcapping": (50.0, None),
    "embedding_multiplier": (12.0, None),
}


@pytest.mark.parametrize("field", MUTATIONS)
def test_no_semantic_field_is_dropped(field, tiny_llama, plain):
    value, target = MUTATIONS[field]
    before = converted(tiny_llama(name="before"), plain).config
    folder = tiny_llama(name="after", **{field: value})
    if target is None:
        with pytest.raises(ContractError, match=field):
            converted(folder, plain)
        return
    after = converted(folder, plain).config
    assert {key for key in before if before[key] != after[key]} == {target}


def test_plain_and_quantized_configs_differ_in_quantization_only(tiny_llama, plain, int8_wo):
    folder = tiny_llama()
    one, other = (
        converted(folder, plan, out=folder.with_name(name)) for name, plan in (("p", plain), ("q", int8_wo))
    )
    assert {key for key in one.config if one.config[key] != other.config[key]} == {"quantization"}
    assert other.config["quantization"] == {"quant_algo": "W8A16", "kv_cache_quant_algo": None}
    shards = [(checkpoint.folder / "rank0.safetensors").read_bytes() for checkpoint in (one, other)]
    assert shards[0] == shards[1]


def test_weight_only_names_the_layers_that_do_not_divide(tiny_llama, int8_wo):
    text = refusal(tiny_llama(intermediate_size=96), int8_wo, ContractError)
    assert (
        "layers.0.mlp.proj.weight: int8-wo needs both sides to be multiples of 64, the layer is 64 x 96"
        in text
    )
    assert "attention" not in text


def test_advice_on_a_layer_is_about_that_layer(tiny_llama, int8_wo):
    text = refusal(tiny_llama(num_key_value_heads=1), int8_wo, ContractError)
    assert "attention.qkv.weight: int8-wo needs" in text
    assert "MLP" not in text


@pytest.mark.parametrize(
    ("dtype", "source", "value", "fits"),
    [
        ("float16", ml_dtypes.bfloat16, 65280.0, True),
        ("float16", ml_dtypes.bfloat16, 65536.0, False),
        ("float16", np.float32, -1e9, False),
        ("float16", ml_dtypes.bfloat16, np.nan, False),
        ("bfloat16", ml_dtypes.bfloat16, 3.38e38, True),
        ("bfloat16", ml_dtypes.bfloat16, np.nan, False),
        ("float16", np.float16, np.inf, False),
        ("float32", np.float32, -np.inf, False),
        ("bfloat16", np.float16, 65504.0, True),
        ("bfloat16", np.float32, 3.4028235e38, False),
    ],
)
def test_no_value_is_or_becomes_infinite(tiny_llama, plain, dtype, source, value, fits):
    def edit(tensors):
        tensors["model.norm.weight"][5] = value

    folder = tiny_llama(edit=edit, dtype=source)
    if fits:
        tensor = converted(folder, plain, dtype=dtype).tensor("transformer.ln_f.weight")
        assert float(tensor[5]) == float(np.array(value, source).astype(tensor.dtype))
    else:
        text = refusal(folder, plain, dtype=dtype)
        assert "model.norm.weight holds" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallelism": Parallelism(tp=3)}, "4 query heads and 2 KV heads cannot be shared by 3 ranks"),
        ({"parallelism": Parallelism(tp=8)}, "cannot be shared by 8 ranks"),
        ({"parallelism": Parallelism(pp=3)}, "2 layers cannot be shared by 3 stages"),
        ({"parallelism": Parallelism(tp=2, moe_ep=2)}, "has no experts"),
        ({"dtype": "int8"}, "not 'int8'"),
    ],
)
def test_what_this_release_does_not_write_is_named(tiny_llama, plain, tmp_path, options, message):
    source = HfCheckpoint.open(tiny_llama())
    with pytest.raises(InputError, match=message):
        convert(source, tmp_path / "out", **{"dtype": "bfloat16", "recipe": Plain(plain)} | options)


def test_conversions_are_repeatable_and_replace_each_other(tiny_llama, plain):
    folder = tiny_llama()
    first = {path.name: path.read_bytes() for path in converted(folder, plain).folder.iterdir()}
    again = {path.name: path.read_bytes() for path in converted(folder, plain).folder.iterdir()}
    assert first == again
    assert sorted(path.name for path in folder.parent.iterdir()) == ["hf", "out"]


def test_other_peoples_files_are_never_replaced(tiny_llama, plain, tmp_path):
    folder = tiny_llama()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert "thesis.tex" in refusal(folder, plain, out=tmp_path / "mine")
    assert "replace the source" in refusal(folder, plain, out=folder)
    assert "replace the source" in refusal(folder, plain, out=tmp_path)


@pytest.mark.parametrize("name", ["rank_notes.safetensors", "rank0.safetensors/x", "config.json"])
def test_files_with_names_like_ours_are_not_ours(tiny_llama, plain, tmp_path, name):
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert name.split("/")[0] in refusal(tiny_llama(), plain, out=tmp_path / "mine")
    assert path.exists()


def test_progress_counts_bytes_to_the_end(tiny_llama, plain, tmp_path):
    seen = []
    report = convert(
        HfCheckpoint.open(tiny_llama()),
        tmp_path / "out",
        dtype="bfloat16",
        recipe=Plain(plain),
        progress=lambda *step: seen.append(step),
    )
    done = [step[1] for step in seen]
    assert done == sorted(done)
    assert seen[-1] == ("convert", report.bytes_written, report.bytes_written)
    assert report.tensors == 17


KILLED = """
import os, signal, sys
from pathlib import Path
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.plan.types import QuantPlan

def stop(stage, done, total):
    print("half way", flush=True)
    signal.pause()

convert(HfCheckpoint.open(Path(sys.argv[1])), Path(sys.argv[2]), dtype="bfloat16",
        recipe=Plain(QuantPlan("none", "auto", None, None)), progress=stop)
"""


@pytest.mark.parametrize("older", [False, True], ids=["none before", "one before"])
def test_a_kill_leaves_the_old_checkpoint_or_none(tiny_llama, plain, tmp_path, older):
    out = tmp_path / "out"
    if older:
        converted(tiny_llama(name="old", rope_theta=5e5), plain, out=out)
    folder = tiny_llama()
    process = subprocess.Popen([sys.executable, "-c", KILLED, folder, out], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"half way\n"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert out.exists() == older
    if older:
        assert verify(out) == []
        assert TrtllmCheckpoint.open(out).config["rotary_base"] == 5e5
    assert list(tmp_path.glob(".out.trtkit-staging-*"))
    converted(folder, plain, out=out)
    assert verify(out) == []
    assert not list(tmp_path.glob(".out*"))


STOPPED = """
import signal
from trtkit.checkpoint.rank_files import RankFiles
from trtkit.cli import main

def stop(*piece):
    print("half way", flush=True)
    signal.pause()

RankFiles.scatter = stop
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_stop_leaves_nothing_half_written(tiny_llama, tmp_path, number):
    """The verb with a conversion that waits; SIGINT is Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, "convert", tiny_llama(), "-o", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"half way\n"
    finally:
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert b"Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


MEASURED = """
import sys
from pathlib import Path
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.plan.types import QuantPlan

def peak_bytes():  # not ru_maxrss: a child begins with the peak of the process that started it
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

before = peak_bytes()
report = convert(HfCheckpoint.open(Path(sys.argv[1])), Path(sys.argv[2]), dtype="float16",
                 recipe=Plain(QuantPlan("none", "auto", None, None)))
print(report.bytes_written, peak_bytes() - before)
"""


def test_memory_does_not_grow_with_the_model(tiny_llama, tmp_path):
    folder = tiny_llama(vocab_size=200_000, tie_word_embeddings=True)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, folder, tmp_path / "out"], check=True, capture_output=True, text=True
    )
    written_bytes, grown_bytes = map(int, done.stdout.split())
    assert written_bytes > 50_000_000
    assert grown_bytes < 12_000_000
