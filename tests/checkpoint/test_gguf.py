"""GGUF: the model that comes out is the one that llama.cpp's converter was given."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.checkpoint.gguf.folder import convert_gguf
from trtkit.checkpoint.gguf.rope import find_llama3, llama3_divisors
from trtkit.checkpoint.gguf.weights import KINDS
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import InputError

WRITABLE = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"}


def opened(path: Path) -> HfCheckpoint:
    convert_gguf(path, path.with_name("hf"))
    return HfCheckpoint.open(path.with_name("hf"))


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        convert_gguf(path, path.with_name("hf"))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    return str(caught.value)


NAMES = {
    "model.embed_tokens.weight": "token_embd",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down",
    "model.norm.weight": "output_norm",
}


def test_the_model_is_what_it_was_before_it_became_a_gguf(write_gguf, weights):
    model = opened(write_gguf())
    config = model.config
    assert (config.num_heads, config.num_kv_heads, config.head_size, config.vocab_size) == (4, 2, 16, 260)
    assert (config.norm_epsilon, config.rotary_base, config.rotary_scaling) == (1e-5, 1e5, None)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (258,)
    assert model.warnings == ()
    for name, key in NAMES.items():
        np.testing.assert_array_equal(
            model.tensors[name].read(), weights[key].astype(model.tensors[name].read().dtype)
        )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "bfloat16")],
)
def test_plain_tensors_keep_their_type_and_most_elements_name_the_models(write_gguf, weights, kind, dtype):
    matrices = [name for name, value in weights.items() if value.ndim == 2]
    model = opened(write_gguf(quantized=dict.fromkeys(matrices, gguf.GGMLQuantizationType[kind])))
    assert model.config.dtype == dtype
    assert model.tensors["model.layers.0.mlp.up_proj.weight"].dtype == dtype
    assert model.tensors["model.norm.weight"].dtype == "float32"
    if kind == "F16":
        found = model.tensors["model.layers.0.self_attn.q_proj.weight"].read()
        np.testing.assert_array_equal(found, weights["blk.0.attn_q"].astype(np.float16))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("F16", 0.01),
        ("BF16", 0.02),
        ("Q8_0", 0.03),
        ("Q5_0", 0.3),
        ("Q5_1", 0.2),
        ("Q4_0", 0.5),
        ("Q4_1", 0.4),
    ],
)
def test_quantized_types_come_out_as_close_as_their_bits_allow(write_gguf, weights, kind, error):
    kinds = dict.fromkeys(("token_embd", "blk.0.attn_q", "blk.0.ffn_down"), gguf.GGMLQuantizationType[kind])
    model = opened(write_gguf(quantized=kinds))
    for name, key in list(NAMES.items())[:2]:
        difference = model.tensors[name].read().astype(np.float32) - weights[key]
        assert 0 < np.abs(difference).max() < error


@pytest.mark.parametrize("kind", sorted(KINDS - WRITABLE))
def test_other_types_are_what_the_library_dequantizes(write_gguf, kind):
    """The library cannot write them all: any bytes are valid blocks, so long as their scales are finite."""
    path = write_gguf()
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = np.random.default_rng(0).integers(0, 60, (64, 256 // block * size), np.uint8)
    writer = gguf.GGUFWriter(path.with_name("k.gguf"), "llama")
    reader = gguf.GGUFReader(path)
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            sub_type = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        changed = tensor.name == "blk.0.ffn_down.weight"
        data, raw = (
            (blocks, gguf.GGMLQuantizationType[kind]) if changed else (tensor.data, tensor.tensor_type)
        )
        writer.add_tensor(tensor.name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = opened(path.with_name("k.gguf")).tensors["model.layers.0.mlp.down_proj.weight"].read()
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(got, expected.astype(got.dtype))


def test_the_tokenizer_cuts_as_the_model_was_trained(write_gguf):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(opened(write_gguf()).tokenizer_file))
    assert tokenizer.encode("the 42<|user|>").tokens == ["t", "he", "Ġ", "4", "2", "<|user|>"]
    assert tokenizer.encode(" the").tokens == ["Ġt", "he"]
    for text in ("naïve 日本語 😀\n\tx  y", "<|end|>7"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.decode(tokenizer.encode("a<|end|>").ids) == "a"


def test_the_chat_template_and_special_tokens_come_along(write_gguf):
    folder = opened(write_gguf()).folder
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["chat_template"], config["eos_token"]) == ("{{ messages }}", "<|end|>")
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 258,
        "eos_token_id": 258,
    }


def test_yarn_scaling_is_carried_over(write_gguf):
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 32}
    path = write_gguf(metadata={f"llama.rope.scaling.{key}": value for key, value in scaling.items()})
    expected = {"type": "yarn", "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert opened(path).config.rotary_scaling == expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "mamba"}, "the architecture 'mamba' is not supported"),
        ({"adapter.type": "lora"}, "holds an adapter as well (adapter.type)"),
        ({"llama.attention.value_length": 64}, "value_length is 64, and keys have 16 dimensions"),
        ({"general.type": "adapter"}, "holds no model but 'adapter'"),
        ({"llama.attention.causal": False}, "llama.attention.causal"),
        ({"llama.vocab_size": 300}, "llama.vocab_size is 300, and token_embd.weight has 260 rows"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "blk.0.ffn_gate.weight (F32)"),
        ({"llama.embedding_length": "64"}, "llama.embedding_length must be a positive whole number, is '64'"),
        ({"llama.rope.dimension_count": 8}, "only 8 of 16 dimensions"),
        ({"llama.rope.scaling.type": "longrope"}, "engines do not know 'longrope'"),
        ({"llama.rope.scaling.attn_factor": 1.2}, "llama.rope.scaling.attn_factor is 1.2"),
        ({"llama.rope.scaling.type": "ntk"}, "engines do not know 'ntk'"),
        ({"llama.block_count": 2}, "model.layers.1.mlp.up_proj.weight: the tensor is missing"),
        ({"llama.attention.head_count": 8}, "the metadata asks for 16 x 64, the tensor is 32 x 64"),
        ({"llama.block_count": None}, "llama.block_count: the field is missing"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_by_name(write_gguf, metadata, message):
    assert message in refusal(write_gguf(metadata=metadata))


def test_an_unknown_tensor_is_refused_by_name(write_gguf):
    assert "cls.weight (F32)" in refusal(write_gguf(extra={"cls": np.ones(8, np.float32)}))


def test_a_vector_that_is_quantized_is_refused_by_name(write_gguf):
    quantized = {"output_norm": gguf.GGMLQuantizationType.Q8_0}
    assert "output_norm.weight (Q8_0)" in refusal(write_gguf(quantized=quantized))


@pytest.mark.parametrize(
    ("metadata", "divisors", "expected"),
    [
        ({}, [1] * 8, None),
        ({"llama.rope.scaling.factor": 0.0}, None, None),
        ({"llama.rope.scaling.attn_factor": 1.0}, None, None),
        # Without a type llama.cpp scales positions evenly.
        ({"llama.rope.scaling.factor": 4.0}, None, {"type": "linear", "rope_type": "linear", "factor": 4.0}),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None, None),
    ],
)
def test_rotary_scaling_is_read_as_llama_cpp_does(write_gguf, metadata, divisors, expected):
    extra = {"rope_freqs": np.array(divisors, np.float32)} if divisors else {}
    assert opened(write_gguf(metadata=metadata, extra=extra)).config.rotary_scaling == expected


def test_frequencies_are_as_many_as_are_rotated_by(write_gguf):
    text = refusal(write_gguf(extra={"rope_freqs": np.ones(16, np.float32)}))
    assert "rope_freqs.weight has the shape [16], and 8 frequencies" in text


def test_frequencies_that_no_scaling_explains_are_refused(write_gguf):
    divisors = np.array([1, 1, 1, 2, 3, 5, 8, 9], np.float32)
    assert "not Llama 3's" in refusal(write_gguf(extra={"rope_freqs": divisors}))


def test_two_kinds_of_scaling_at_once_are_refused(write_gguf):
    parameters = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    divisors = llama3_divisors(parameters | {"original_max_position_embeddings": 64}, 1e5, 8)
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    path = write_gguf(extra={"rope_freqs": divisors.astype(np.float32)}, metadata=metadata)
    assert "scaled in more than one way: linear and llama3" in refusal(path)


@given(
    factor=st.sampled_from([2.0, 8.0, 32.0]),
    length=st.sampled_from([1024, 8192]),
    base=st.sampled_from([1e4, 5e5]),
    pairs=st.sampled_from([16, 32, 64]),
)
def test_llama_3_scaling_is_recovered_from_its_divisors(factor, length, base, pairs):
    parameters = {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": length,
    }
    divisors = llama3_divisors(parameters, base, pairs).astype(np.float32)
    found = find_llama3(divisors, base)
    assert found is not None
    np.testing.assert_allclose(llama3_divisors(found, base, pairs), divisors, rtol=1e-5)


def test_every_token_that_ends_a_turn_ends_an_answer(write_gguf):
    metadata = {"tokenizer.ggml.eot_token_id": 259, "tokenizer.ggml.eom_token_id": 258}
    assert opened(write_gguf(metadata=metadata)).config.eos_token_ids == (258, 259)


def test_damaged_numbers_are_refused_by_name(write_gguf, weights):
    weights["blk.0.ffn_norm"][3] = np.nan
    assert "model.layers.0.post_attention_layernorm.weight holds NaN" in refusal(write_gguf())


@pytest.mark.parametrize("size", [3, 100, 20_000])
def test_a_cut_file_is_no_model(write_gguf, size):
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:size])
    assert "not a whole GGUF file" in refusal(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"the file is empty (0 bytes)"),
        (
            b"version https://git-lfs.github.com/spec/v1\r\noid sha256:4d7a\r\nsize 5000\r\n",
            "pointer, not the file",
        ),
        (b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page, not a GGUF file"),
    ],
)
def test_what_stands_in_for_a_file_is_recognized(write_gguf, content, message):
    path = write_gguf()
    path.write_bytes(content)
    assert message in refusal(path)


def test_a_split_model_is_one_whichever_part_is_named(write_gguf, tmp_path):
    whole = opened(write_gguf()).folder
    write_gguf(tensors_per_part=4)
    parts = sorted(tmp_path.glob("tiny-*.gguf"))
    assert [part.name for part in parts] == [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for part in parts:
        convert_gguf(part, tmp_path / "split")
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            assert (tmp_path / "split" / name).read_bytes() == (whole / name).read_bytes()


def test_a_part_with_settings_of_its_own_is_refused(write_gguf, tmp_path):
    write_gguf(tensors_per_part=4)
    second = tmp_path / "tiny-00002-of-00003.gguf"
    reader = gguf.GGUFReader(second)
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "llama")
    for name in ("split.no", "split.count"):
        writer.add_uint16(name, reader.fields[name].contents())
    writer.add_float32("llama.rope.freq_base", 5e5)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "other.gguf").rename(second)
    with pytest.raises(InputError, match=r"differs from the first part in llama\.rope\.freq_base"):
        convert_gguf(tmp_path / "tiny-00001-of-00003.gguf", tmp_path / "hf")


def test_a_set_that_lacks_a_part_is_refused(write_gguf, tmp_path):
    write_gguf(tensors_per_part=4)
    first, second, third = sorted(tmp_path.glob("tiny-*.gguf"))
    second.unlink()
    with pytest.raises(InputError, match=r"1 of 3 parts are missing: tiny-00002-of-00003\.gguf"):
        convert_gguf(first, tmp_path / "hf")
    third.rename(second)
    second.with_name(third.name).write_bytes(second.read_bytes())
    with pytest.raises(InputError, match="calls it part 3 of 3, its name part 2 of 3"):
        convert_gguf(first, tmp_path / "hf")
    first.rename(tmp_path / "model.gguf")
    with pytest.raises(InputError, match="calls it part 1 of 3, its name part 1 of 1"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
