"""Stop words: what is released is the text before the earliest one, whatever the tokens look like."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from trtkit.engine.inflight.stops import StopGuard, Token
from trtkit.engine.inflight.vocabulary import REPLACEMENT, TextVocabulary, TokenIds, Vocabulary

PIECES = ["a", "b", "ab", " the", "\n\n", '"}', "é", "東京", "🎉", "👩‍👩‍👧", " User:", "x", REPLACEMENT]
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def earliest(text: str, stops: list[str]) -> int:
    return min((text.find(stop) for stop in stops if stop and stop in text), default=len(text))


def release(tokens: list[int], stops: list[str], vocabulary: Vocabulary) -> tuple[list[list[int]], bool]:
    """Feed until the guard stops; return what each call released."""
    guard, released = StopGuard(stops, vocabulary), []
    for token in tokens:
        released.append([t.id for t in guard.push(Token(token))])
        if guard.stopped:
            return released, True
    released.append([t.id for t in guard.flush()])
    return released, guard.stopped


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> TextVocabulary:
    return TextVocabulary(tokenizer)


@pytest.fixture(scope="session")
def metaspace() -> TextVocabulary:
    """Sentencepiece style: a space before the first word, bytes for what is not in the vocabulary."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abtheUsrx:",
        "th",
        "the",
        "▁the",
        "ab",
        "▁ab",
    ]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("a", "b"), ("▁", "ab")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return TextVocabulary(tokenizer)


@settings(deadline=None, max_examples=300)
@given(data=st.data(), stops=st.lists(texts, max_size=4), text=texts)
def test_text_before_the_earliest_stop(vocabulary: Any, data: Any, stops: list[str], text: str) -> None:
    parts = data.draw(
        st.sampled_from([[text], list(text)])
    )  # the tokenizer's own split, or character by character
    tokens = [token for part in parts for token in vocabulary.encode(part)]
    whole = vocabulary.decode(tokens)
    released, stopped = release(tokens, stops, vocabulary)
    flat = [token for group in released for token in group]
    assert vocabulary.decode(flat) == whole[: earliest(whole, stops)]
    assert stopped == any(stop and stop in whole for stop in stops)


@settings(deadline=None, max_examples=300)
@given(tokens=st.lists(st.integers(2, 399), max_size=20), stops=st.lists(texts, max_size=3))
def test_any_tokens_at_all(vocabulary: Any, tokens: list[int], stops: list[str]) -> None:
    whole = vocabulary.decode(tokens)
    released, _ = release(tokens, stops, vocabulary)
    flat = [token for group in released for token in group]
    assert vocabulary.decode(flat) == whole[: earliest(whole, stops)]


@settings(deadline=None)
@given(text=texts)
def test_each_release_is_whole_characters(vocabulary: Any, text: str) -> None:
    released, _ = release(vocabulary.encode(text), [], vocabulary)
    assert "".join(map(vocabulary.decode, released)) == text


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 5), max_size=20),
    stops=st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=3),
)
def test_without_a_tokenizer_stops_are_token_sequences(tokens: list[int], stops: list[list[int]]) -> None:
    ids = TokenIds()
    released, _ = release(tokens, [ids.decode(stop) for stop in stops], ids)
    cut = next(
        (i for i in range(len(tokens)) if any(s and tokens[i : i + len(s)] == s for s in stops)), len(tokens)
    )
    assert [token for group in released for token in group] == tokens[:cut]


@settings(deadline=None, max_examples=200)
@given(
    text=st.lists(st.sampled_from([*"ab ", " the", "東", "🎉"]), min_size=1, max_size=8).map("".join),
    stop=texts,
)
def test_tokenizers_that_add_a_space(metaspace: Any, text: str, stop: str) -> None:
    tokens = metaspace.encode(text)
    whole = metaspace.decode(tokens)
    released, _ = release(tokens, [stop], metaspace)
    assert metaspace.decode([t for group in released for t in group]) == whole[: earliest(whole, [stop])]


def test_a_longer_stop_that_began_earlier_wins(vocabulary: Any) -> None:
    for text, kept in (("xabcd!", "x"), ("xabce!", "xa")):
        released, _ = release([t for c in text for t in vocabulary.encode(c)], ["abcd", "bc"], vocabulary)
        assert vocabulary.decode([t for group in released for t in group]) == kept


def test_nothing_is_held_without_cause(vocabulary: Any) -> None:
    tokens = vocabulary.encode("a quick fox")
    assert release(tokens, ["zzz"], vocabulary)[0] == [*([t] for t in tokens), []]


def test_many_stops_are_cheap(vocabulary: Any) -> None:
    stops = [f"stop word number {i}" for i in range(50)]
    text = "the quick brown fox " * 20 + stops[49]
    released, stopped = release(vocabulary.encode(text), stops, vocabulary)
    assert stopped
    assert vocabulary.decode([t for group in released for t in group]) == "the quick brown fox " * 20


def test_log_probs_stay_with_their_tokens(vocabulary: Any) -> None:
    guard = StopGuard(["ck"], vocabulary)
    tokens = vocabulary.encode("the quick")
    out = [token for i, t in enumerate(tokens) for token in guard.push(Token(t, -float(i + 1)))]
    assert vocabulary.decode([token.id for token in out]) == "the qui"
    assert out[0].log_prob == -1.0
    assert all(token.log_prob <= 0 for token in out)
