from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.triton.text import (
    REPLACEMENT,
    IncrementalDetokenizer,
    TextTokenizer,
    decode_after,
    decode_word_list,
    encode_word_list,
)

TEXTS = [
    "  leading spaces and    code\n        indentation {\n\t}",
    "日本語のテキスト、中文。",
    "👩‍👩‍👧‍👦 and 🇩🇪 and ❤️",
    "e\u0301a\u0308 combining",
    "Съешь ещё этих мягких булок",
    " ",
]
texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=60))


def cut(items, points):
    bounds = [0, *sorted(point % (len(items) + 1) for point in points), len(items)]
    return [items[start:end] for start, end in pairwise(bounds)]


@given(text=texts, points=st.lists(st.integers(0, 10**6), max_size=8))
def test_chunks_add_up_to_the_batch_text(tokenizer, text, points):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    detokenizer = IncrementalDetokenizer(tokenizer.decode)
    chunks = [detokenizer.push(part) for part in cut(ids, points)]
    assert "".join(chunks) + detokenizer.flush() == tokenizer.decode(ids)


@given(data=st.data())
def test_any_token_sequence_gives_the_same_text_however_it_is_cut(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=40))
    points = data.draw(st.lists(st.integers(0, 10**6), max_size=8))
    whole, parts = (IncrementalDetokenizer(tokenizer.decode) for _ in range(2))
    streamed = "".join(parts.push(part) for part in cut(ids, points)) + parts.flush()
    assert streamed == whole.push(ids) + whole.flush()


@given(ids=st.lists(st.integers(0, 479), max_size=40))
def test_byte_level_text_equals_the_tokenizer_even_for_invalid_bytes(byte_level_tokenizer, ids):
    decode = byte_level_tokenizer.decode
    detokenizer = IncrementalDetokenizer(decode)
    assert detokenizer.push(ids) + detokenizer.flush() == decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_no_delta_ends_inside_a_character(tokenizer, text):
    detokenizer = IncrementalDetokenizer(tokenizer.decode)
    deltas = [detokenizer.push([token]) for token in tokenizer.encode(text).ids]
    assert not any(REPLACEMENT in delta for delta in deltas)
    assert detokenizer.flush() == ""


def test_incomplete_tail_is_flushed(byte_level_tokenizer):
    detokenizer = IncrementalDetokenizer(byte_level_tokenizer.decode)
    first_byte = byte_level_tokenizer.token_to_id("Ã")  # 0xC3, the first byte of "é"
    assert detokenizer.push([first_byte]) == ""
    assert detokenizer.flush() == REPLACEMENT


@settings(deadline=None)
@given(text=texts, size=st.integers(1, 8), context=st.integers(1, 8))
def test_stateless_decoding_after_whole_chunks_adds_up(tokenizer, text, size, context):
    """The ensemble's case: chunks that end at whole characters, each with the chunks before it as context."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    chunks = whole_character_chunks(tokenizer, ids, size)
    streamed = [
        decode_after(tokenizer.decode, list(chain(*chunks[max(0, i - context) : i])), chunk)
        for i, chunk in enumerate(chunks)
    ]
    assert "".join(streamed) == tokenizer.decode(ids)


def whole_character_chunks(tokenizer, ids, size):
    chunks, pending = [], []
    detokenizer = IncrementalDetokenizer(tokenizer.decode)
    for token in ids:
        pending.append(token)
        if detokenizer.push([token]) and len(pending) >= size:
            chunks.append(pending)
            pending = []
    return [*chunks, pending]


words = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), max_size=6)


@given(words=words, extra=st.integers(0, 5))
def test_word_lists_survive_encoding_and_padding(words, extra):
    plain = encode_word_list(words)
    assert plain.shape == (2, max(sum(map(len, words)), len(words)))
    assert decode_word_list(encode_word_list(words, plain.shape[1] + extra)) == words


@pytest.mark.parametrize(
    "rows",
    [[[1, 2], [2, 1]], [[1, 2], [3, -1]], [[1, 2], [-1, 2]], [[1, 2], [1, 1]], [[1, 2], [0, 2]], [[1, 2]]],
    ids=["decreasing", "beyond", "after-end", "equal", "empty-word", "one-row"],
)
def test_malformed_word_lists_are_refused(rows):
    with pytest.raises(ValueError, match="Sparse list must"):
        decode_word_list(np.array(rows, np.int32))


def test_special_tokens_of_the_prompt_are_recognised(tokenizer_dir):
    tokenizer = TextTokenizer(tokenizer_dir)
    assert tokenizer.encode("<|im_start|>a")[0] == 2
    assert tokenizer.decode(tokenizer.encode("<|im_start|>a")) == "a"


def test_surface_variants_cover_start_space_and_middle(tokenizer_dir):
    tokenizer = TextTokenizer(tokenizer_dir)
    decoded = {tokenizer.decode(ids) for ids in tokenizer.surface_variants("fox")}
    assert decoded == {"fox", " fox"}


def test_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        TextTokenizer(tmp_path)
