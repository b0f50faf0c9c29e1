"""``trtkit inspect``: what folders are, whoever made them, and which parts of them are damaged."""

import json
import os
import time

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.cli.engines import PRETRAINED, write_engine
from tests.cli.test_jobs import contract  # noqa: F401 - a fixture
from trtkit.errors import InputError
from trtkit.flow.inspect import Kind, inspect
from trtkit.flow.inspect.gguf import inspect_gguf

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "hidden_size": 8192,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
    "vocab_size": 128256, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "eos_token_id": 128001,
}  # fmt: skip


def shapes_of_a_layer(layer, hidden=8192, wide=28672, kv=1024):
    name = f"model.layers.{layer}."
    yield from (
        (f"{name}{norm}.weight", (hidden,)) for norm in ("input_layernorm", "post_attention_layernorm")
    )
    for projection, rows in (("q", hidden), ("k", kv), ("v", kv), ("o", hidden)):
        yield f"{name}self_attn.{projection}_proj.weight", (rows, hidden)
    for projection, shape in (("gate", (wide, hidden)), ("up", (wide, hidden)), ("down", (hidden, wide))):
        yield f"{name}mlp.{projection}_proj.weight", shape


def write_sparse(path, tensors, dtype="BF16", bytes_each=2):
    """Write a safetensors file whose data is a hole; return the names in it."""
    header, at = {}, 0
    for name, shape in tensors:
        size = int(np.prod(shape)) * bytes_each
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return header.keys()


@pytest.fixture
def llama_70b(tmp_path):
    """A folder of 141 GB that takes no place on disk."""
    folder = tmp_path / "llama-70b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_70B))
    ends = [("model.embed_tokens.weight", (128256, 8192)), ("lm_head.weight", (128256, 8192))]
    parts = [[*ends, ("model.norm.weight", (8192,))]]
    parts += [
        [each for layer in range(at, at + 4) for each in shapes_of_a_layer(layer)] for at in range(0, 80, 4)
    ]
    weight_map = {}
    for number, tensors in enumerate(parts, start=1):
        path = folder / f"model-{number:05}-of-{len(parts):05}.safetensors"
        weight_map |= dict.fromkeys(write_sparse(path, tensors), path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_a_folder_of_140_gb_takes_less_than_a_second(llama_70b):
    started_s = time.process_time()
    found = inspect(llama_70b)
    assert time.process_time() - started_s < 1.0
    assert found.bytes > 140e9
    assert sum(path.stat().st_blocks for path in llama_70b.iterdir()) * 512 < 10e6
    assert (found.kind, found.parameters, found.tensors) == (Kind.HUGGING_FACE, 70_553_706_496, 723)
    # 2 x 80 layers x 8 heads x 128 x 2 bytes
    assert found.kv_bytes_per_token == 327_680
    assert found.dtypes.keys() == {"bfloat16"}
    assert found.all_problems == ()


def test_every_damaged_file_is_named_and_the_rest_is_told(trtkit, llama_70b):
    files = sorted(llama_70b.glob("*.safetensors"))
    os.truncate(files[1], files[1].stat().st_size - 1)
    files[2].write_bytes(b"")
    files[3].unlink()
    code, out, err = trtkit("inspect", llama_70b, "--output", "json")
    document = json.loads(out)
    assert code == 6
    assert {problem["file"] for problem in document["problems"]} == {str(path) for path in files[1:4]}
    assert document["architecture"] == "LlamaForCausalLM"
    # The header of the file that is cut off is whole, and counts.
    assert document["dtypes"]["bfloat16"]["tensors"] == 723 - 2 * 36
    assert "Traceback" not in err


def test_tensors_that_contradict_config_json_are_damage(trtkit, llama_70b):
    (llama_70b / "config.json").write_text(json.dumps(LLAMA_70B | {"hidden_size": 4096, "head_dim": 128}))
    code, _, err = trtkit("inspect", llama_70b)
    assert (code, "more, which `trtkit verify` lists" in err, err.count("fix:") <= 1) == (6, True, True)


def test_files_that_are_not_the_model_s_are_told(trtkit, tiny_llama):  # noqa: F811
    folder = tiny_llama()
    before = json.loads(trtkit("inspect", folder, "--output", "json")[1])
    (folder / "model-copy.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    code, out, _ = trtkit("inspect", folder, "--output", "json")
    after = json.loads(out)
    assert (code, after["tensors"]) == (0, before["tensors"])
    assert after["notes"] == ["not read: model-copy.safetensors; the model is in model.safetensors"]
    assert "not read: model-copy.safetensors" in trtkit("verify", folder)[2]
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    code, _, err = trtkit("inspect", folder)
    assert (code, "tensors are in two files" in err) == (6, True)


@pytest.mark.parametrize("name", ["", "pytorch_model.bin"])
def test_a_folder_without_weights_says_so(trtkit, tiny_llama, name):  # noqa: F811
    folder = tiny_llama()
    (folder / "model.safetensors").unlink()
    if name:
        (folder / name).write_bytes(b"x")
    code, out, _ = trtkit("inspect", folder)
    assert (code, "there are no weights that trtkit reads" in out, name in out) == (0, True, True)


@pytest.mark.parametrize("tp", [1, 2])
def test_checkpoints_of_all_ranks_are_counted(trtkit, tiny_llama, tmp_path, tp):  # noqa: F811
    out = tmp_path / "out"
    trtkit("convert", tiny_llama(), "-o", out, "--tp", tp)
    code, text, _ = trtkit("inspect", out, "--output", "json")
    document = json.loads(text)
    assert code == 0
    assert (document["kind"], document["ranks"]) == ("TensorRT-LLM checkpoint", tp)
    assert sorted(document["files"]) == [f"rank{rank}.safetensors" for rank in range(tp)]
    sizes = {path.name: path.stat().st_size for path in out.glob("rank*")}
    assert (document["files"], document["bytes"]) == (sizes, sum(sizes.values()))
    one = json.loads((out / "config.json").read_text())
    heads = one["num_key_value_heads"] // tp
    assert document["kv_bytes_per_token"] == 2 * one["num_hidden_layers"] * heads * one["head_size"] * 2


def test_a_rank_that_is_missing_and_one_that_is_left_over_are_named(trtkit, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    trtkit("convert", tiny_llama(), "-o", out, "--tp", 2)
    (out / "rank1.safetensors").rename(out / "rank2.safetensors")
    code, _, err = trtkit("inspect", out)
    assert code == 6
    assert "rank1.safetensors: the file is missing; config.json is for 2 ranks" in err
    assert "rank2.safetensors: left over" in err


def test_an_engine_of_another_tool_is_told_from_its_own_description(tmp_path):
    write_engine(tmp_path)
    found = inspect(tmp_path)
    assert (found.kind, found.ranks, found.weights, found.kv_cache) == (Kind.ENGINE, 2, "FP8", "FP8")
    assert found.details["trtllm"] == "1.1.0"
    assert found.details["max_batch_size"] == 8
    # 2 x 2 layers x 1 head on each rank x 16 x 1 byte
    assert found.kv_bytes_per_token == 64
    assert found.all_problems == ()


def test_a_repository_is_told_with_the_engine_inside(trtkit, contract):  # noqa: F811
    _, out, _ = trtkit("build", contract(), "--output", "json")
    document = json.loads(trtkit("inspect", json.loads(out)["repository"], "--output", "json")[1])
    (engine,) = document["parts"]
    assert document["kind"] == "model repository"
    assert document["details"]["models"]["ensemble"]["max_batch_size"] == 4
    assert document["details"]["built_for"]["backend"] == "cpu"
    assert (engine["kind"], engine["details"]["backend"]) == ("engine", "cpu")
    assert engine["dtypes"]
    assert trtkit("inspect", json.loads(out)["repository"])[0] == 0


def test_an_engine_whose_weights_are_cut_off_is_named(trtkit, contract, tmp_path):  # noqa: F811
    trtkit("build", contract())
    (weights,) = (tmp_path / "home").glob("compile/*/openvino_model.bin")
    os.truncate(weights, weights.stat().st_size // 2)
    code, _, err = trtkit("inspect", weights.parent)
    assert code == 6
    assert f"{weights}: cut off" in err


UNKNOWN = {
    "architectures": ["GhostForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
}


def test_an_unknown_architecture_is_told_as_far_as_it_says(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN | {"dtype": "float16"}))
    write_sparse(tmp_path / "model.safetensors", [("w", (8, 8))], "F16")
    found = inspect(tmp_path)
    assert (found.architecture, found.parameters, found.kv_bytes_per_token) == ("GhostForCausalLM", 64, 512)
    assert "does not convert it" in found.notes[0]
    assert found.all_problems == ()


def test_a_cache_that_is_not_made_of_heads_is_not_guessed(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN | {"kv_lora_rank": 512}))
    write_sparse(tmp_path / "model.safetensors", [("w", (8, 8))])
    assert inspect(tmp_path).kv_bytes_per_token is None


def test_a_tool_that_nobody_reads_is_named_and_its_parameters_are_not_guessed(tmp_path):
    config = UNKNOWN | {"quantization_config": {"quant_method": "hqq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_sparse(tmp_path / "model.safetensors", [("w", (8, 8))], "U8", 1)
    found = inspect(tmp_path)
    assert (found.weights, found.parameters) == ("hqq", None)
    assert found.dtypes["uint8"].elements == 64


def test_a_data_type_of_its_own_is_counted_and_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN))
    write_sparse(tmp_path / "model.safetensors", [("w", (8, 8))], "F8_E8M0", 1)
    found = inspect(tmp_path)
    assert found.dtypes["F8_E8M0"].elements == 64
    assert "F8_E8M0" in found.all_problems[0].message


@pytest.fixture
def gguf_file(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_embedding_length(64)
    writer.add_token_list([f"token {index}" for index in range(50_000)])
    writer.add_token_scores([0.0] * 50_000)
    writer.add_tensor("token_embd.weight", np.zeros((32, 64), np.float32))
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(
        "blk.0.attn_q.weight", gguf.quants.quantize(np.zeros((64, 64), np.float32), q8_0), raw_dtype=q8_0
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_told_without_reading_its_vocabulary(gguf_file):
    started_s = time.process_time()
    found = inspect(gguf_file)
    assert time.process_time() - started_s < 1.0
    assert (found.architecture, found.parameters, found.weights) == ("llama", 32 * 64 + 64 * 64, "Q8_0")
    assert {name: amount.bytes for name, amount in found.dtypes.items()} == {"F32": 8192, "Q8_0": 64 * 2 * 34}
    # 2 layers x 2 heads x (16 + 16) x 2 bytes
    assert found.kv_bytes_per_token == 256
    assert found.all_problems == ()


def test_a_gguf_file_that_is_cut_off_is_named(gguf_file):
    os.truncate(gguf_file, gguf_file.stat().st_size - 64)
    (problem,) = inspect(gguf_file).all_problems
    assert "cut off" in problem.message


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(end=st.integers(0, 4000), flipped=st.binary(min_size=1, max_size=8), at=st.integers(0, 400))
def test_a_damaged_gguf_header_never_ends_in_a_traceback(gguf_file, tmp_path, end, flipped, at):
    data = bytearray(gguf_file.read_bytes()[:end])
    data[at : at + len(flipped)] = flipped
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    assert inspect_gguf(path).problems


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"build_config": 3}', '{"architectures": 3}', '{"quantization": []}']
)
def test_a_description_that_is_none_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    write_sparse(tmp_path / "rank0.safetensors", [("w", (8, 8))])
    assert inspect(tmp_path).all_problems


def test_what_is_nothing_of_this_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError):
            inspect(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.just(1e400) | st.text(max_size=3),
    lambda below: (
        st.lists(below, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "tp_size", "name"]), below, max_size=2)
    ),
    max_leaves=4,
)
SHUFFLED = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SHUFFLED
@given(data=st.data())
def test_no_value_of_a_description_ends_in_a_traceback(tmp_path, data):
    origin = {"contract": {"path": "x"}, "source": {}, "target": {"sm": 90}, "tools": {}}
    engine = {"version": "1.1.0", "backend": "cpu", "pretrained_config": PRETRAINED, "build_config": {}}
    manifest = {"schema": 3, "stage": "s", "key": "k", "inputs": {}, "facts": {}, "files": {}, "trtkit": "1"}
    manifest |= {"origin": origin, "gate": {}, "digest": ""}
    for name, content in (
        ("hf", LLAMA_70B),
        ("trtllm", PRETRAINED),
        ("engine", engine),
        ("manifest", manifest),
    ):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        keys = data.draw(st.lists(st.sampled_from(sorted(content)), max_size=3))
        changed = content | {key: data.draw(JSON) for key in keys}
        (folder / ("trtkit-manifest.json" if name == "manifest" else "config.json")).write_text(
            json.dumps(changed)
        )
        if name == "manifest":
            (folder / "config.json").write_text(json.dumps(engine))
        (folder / "model.safetensors").write_bytes(b"")
        assert inspect(folder).kind
