"""Tokenizers out of GGUF files cut text as those did that the models were trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from trtkit.checkpoint.gguf.file import GgufFile
from trtkit.checkpoint.gguf.merges import merges_by_score
from trtkit.checkpoint.gguf.tokenizer import tokenizer_files

LETTERS = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
"""The 256 letters that byte-level BPE writes bytes with."""
MERGES = ["1 2", "12 3", "1 1", "Ġ t", "h e", "Ġt he", "Ċ Ċ", "' s", "' S", "Ġ Ġ"]
WORDS = [*(merge.replace(" ", "") for merge in MERGES), "xyz"]
SPECIAL = ["<s>", "</s>"]
BYTE_LEVEL = {
    "model": "gpt2",
    "tokens": [*LETTERS, *WORDS, *SPECIAL, "[PAD0]", "[PAD0]"],
    "token_type": [1] * (256 + len(WORDS)) + [3, 3, 5, 5],
    "merges": MERGES,
    "bos_token_id": 256 + len(WORDS),
    "eos_token_id": 257 + len(WORDS),
}


def files(architecture: str = "llama", **tokenizer: Any) -> dict[str, dict[str, Any]]:
    fields = {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items() if value is not None}
    file = GgufFile(Path("model.gguf"), {"general.architecture": architecture, **fields}, {})
    return tokenizer_files(file, max_length=128)


def loaded(**tokenizer: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(files(**tokenizer)["tokenizer.json"]))


def byte_level(pre: str, **changes: Any) -> Tokenizer:
    return loaded(**BYTE_LEVEL, pre=pre, **changes)


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("gpt-2", "123 the", ["123", "Ġthe"]),
        ("smollm", "123 the", ["1", "2", "3", "Ġthe"]),
        ("refact", "123 the", ["1", "2", "3", "Ġthe"]),
        ("qwen2", "123 the", ["1", "2", "3", "Ġthe"]),
        ("llama-bpe", "1123 the", ["<s>", "1", "12", "3", "Ġthe"]),
        ("llama-bpe", "123123", ["<s>", "123", "123"]),
        # A capital contraction is one only where the pattern ignores case.
        ("gpt-2", "x'Sa", ["x", "'", "S", "a"]),
        ("qwen2", "x'Sa", ["x", "'S", "a"]),
        ("llama-bpe", "x'Sa", ["<s>", "x", "'S", "a"]),
        # Line ends cling to the punctuation before them, or stay together.
        ("gpt-2", "a\n\nb", ["a", "Ċ", "Ċ", "b"]),
        ("qwen2", "a\n\nb", ["a", "ĊĊ", "b"]),
        # Qwen composes characters first.
        ("qwen2", "e\u0301", ["Ã", "©"]),
        ("llama-bpe", "e\u0301", ["<s>", "e", "Ì", "ģ"]),
        # A piece that is a token stays one with Llama 3, though no merges lead to it.
        ("llama-bpe", "xyz", ["<s>", "xyz"]),
        ("gpt-2", "xyz", ["x", "y", "z"]),
    ],
)
def test_text_is_cut_as_by_the_name_of_the_tokenizer(pre, text, tokens):
    assert byte_level(pre).encode(text).tokens == tokens


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe"])
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_nothing_is_lost_on_the_way_there_and_back(pre, text):
    tokenizer = byte_level(pre, add_bos_token=False)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        ({}, ["1"]),
        ({"add_bos_token": True}, ["<s>", "1"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>", "1", "</s>"]),
    ],
)
def test_texts_get_the_edges_that_the_file_asks_for(flags, tokens):
    tokenizer = byte_level("gpt-2", **flags)
    assert tokenizer.encode("1").tokens == tokens
    assert tokenizer.encode("1", add_special_tokens=False).tokens == ["1"]


@pytest.mark.parametrize(("family", "pre"), [("qwen2", "qwen2"), ("gpt2", "gpt-2")])
def test_transformers_rebuilds_the_same_tokenizer(family, pre):
    transformers = pytest.importorskip("transformers.integrations.ggml")
    theirs, _ = transformers.convert_gguf_tokenizer(
        family, {key: BYTE_LEVEL[key] for key in ("tokens", "token_type", "merges")}
    )
    ours = byte_level(pre)
    for text in ("I'll we'VE 1123 the\n\n  the x\r\n;\n tab\tnaïve e\u0301 日本", "...!?\n\n a  b", "½²٣"):
        assert ours.encode(text).tokens == theirs.encode(text, add_special_tokens=False).tokens


def sentence_piece(name: str) -> tuple[dict[str, Any], list[tuple[str, list[int]]]]:
    """A model that sentencepiece 0.2.3 was trained to be, and what it makes of some texts."""
    content = json.loads(Path(__file__).with_name("sentence_piece.json").read_text())[name]
    fields = {"model": "llama", "tokens": content["tokens"], "scores": content["scores"]}
    edges = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return {**fields, "token_type": content["types"], **edges}, content["texts"]


@pytest.mark.parametrize("name", ["prefix", "no_prefix"])
def test_sentence_piece_is_rebuilt_from_its_scores(name):
    fields, texts = sentence_piece(name)
    tokenizer = loaded(**fields, add_space_prefix=name == "prefix", add_bos_token=False)
    assert len(texts) > 10
    for text, ids in texts:
        assert tokenizer.encode(text).ids == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_sentence_piece_begins_every_text_unless_told_not_to():
    fields, _ = sentence_piece("prefix")
    assert loaded(**fields).encode("x").tokens[0] == "<s>"


def test_the_merge_with_the_highest_score_goes_first():
    scores = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0, "abc": -3.0, "x<y": 0.0}
    assert merges_by_score(scores) == [["b", "c"], ["a", "b"], ["ab", "c"], ["a", "bc"]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pre": "tekken"}, "cuts text as 'tekken' does"),
        ({"pre": None}, "cuts text as None does"),
        ({"model": "bert"}, "kind is 'bert'"),
        ({"model": None}, "kind is None"),
        ({"merges": None}, "lacks merges"),
        ({"merges": [*MERGES, "q z"]}, "merges name tokens that it does not have"),
        ({"token_type": [1]}, "271 tokens and 1 types"),
        ({"tokens": [*BYTE_LEVEL["tokens"][:-4], "<s>", "<s>", "[PAD0]", "[PAD0]"]}, "twice: '<s>'"),
        ({"add_bos_token": True, "bos_token_id": None}, "does not say which token that is"),
        ({"add_sep_token": True}, "adds sep to every text"),
        ({"model": "llama", "scores": [0.0]}, "271 tokens and 1 scores"),
        ({"model": "llama", "remove_extra_whitespaces": True}, "normalizes text"),
    ],
)
def test_what_cannot_be_rebuilt_is_left_out_with_the_reason(changes, reason):
    found = files(**(BYTE_LEVEL | {"pre": "gpt-2"} | changes))
    assert list(found) == ["tokenizer_missing.json"]
    assert reason in found["tokenizer_missing.json"]["reason"]


def test_phi_3_is_left_out_because_its_file_does_not_say_enough():
    fields, _ = sentence_piece("prefix")
    assert "swallow spaces" in files("phi3", **fields)["tokenizer_missing.json"]["reason"]
