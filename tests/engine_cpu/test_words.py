"""Stop and bad words through the whole engine, against a plain model that is stepped by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from trtkit.engine.inflight.bans import Bans, surface_variants
from trtkit.engine.inflight.request import FinishReason
from trtkit.engine.inflight.vocabulary import TextVocabulary

PROMPT = np.random.default_rng(5).integers(0, 400, 40).tolist()
NextLogits = Callable[[Sequence[int]], np.ndarray]


@pytest.fixture(scope="session")
def next_logits(engine_dir: Path) -> NextLogits:
    """The engine's model without pages and without memory: the whole sequence each time."""
    exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = ov.Core().compile_model(engine_dir / "openvino_model.xml", "CPU", exact)

    def logits(tokens: Sequence[int]) -> np.ndarray:
        inputs = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, len(tokens)), np.int64),
            "position_ids": np.arange(len(tokens))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return model.create_infer_request().infer(inputs)["logits"][0, -1].astype(np.float64)

    return logits


def greedy(
    next_logits: NextLogits, bad_words: Sequence[Sequence[int]], count: int, frequency: float = 0
) -> list[int]:
    """What greedy decoding with bans means, in the most literal way."""
    out: list[int] = []
    while len(out) < count:
        row = next_logits(PROMPT + out)
        for token in out:
            row[token] -= frequency
        for word in bad_words:
            if (PROMPT + out)[len(PROMPT + out) - len(word) + 1 :] == list(word[:-1]):
                row[word[-1]] = -np.inf
        out.append(int(row.argmax()))
    return out


def contains(tokens: Sequence[int], word: Sequence[int]) -> bool:
    return any(list(tokens[i : i + len(word)]) == list(word) for i in range(len(tokens)))


def test_greedy_without_bad_words(client: Any, next_logits: NextLogits) -> None:
    assert client.ask(PROMPT, 16).tokens == greedy(next_logits, [], 16)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_bad_word_is_stepped_around(client: Any, next_logits: NextLogits, length: int) -> None:
    free = client.ask(PROMPT, 16).tokens
    bad_words = (tuple(free[4 : 4 + length]), tuple(free[9 : 9 + length]))
    reply = client.ask(PROMPT, 16, bad_words=bad_words)
    assert reply.tokens == greedy(next_logits, bad_words, 16)
    assert not any(contains(reply.tokens, word) for word in bad_words)
    assert reply.reason is FinishReason.LENGTH


def test_bad_word_that_begins_in_the_prompt(client: Any, next_logits: NextLogits) -> None:
    bad_word = (PROMPT[-1], client.ask(PROMPT, 1).tokens[0])
    assert client.ask(PROMPT, 8, bad_words=(bad_word,)).tokens == greedy(next_logits, [bad_word], 8)


def test_penalties_still_count_what_came_before_the_ban(client: Any, next_logits: NextLogits) -> None:
    penalty = {"frequency_penalty": 1.5}
    free = client.ask(PROMPT, 20, **penalty).tokens
    assert free == greedy(next_logits, [], 20, frequency=1.5)
    bad_words = ((free[5],),)
    assert client.ask(PROMPT, 20, bad_words=bad_words, **penalty).tokens == greedy(
        next_logits, bad_words, 20, 1.5
    )


def test_bad_words_with_sampling_repeat_by_seed(client: Any) -> None:
    sampled = {"temperature": 0.8, "top_k": 40, "seed": 5}
    free = client.ask(PROMPT, 30, **sampled).tokens
    bad_words = tuple((token,) for token in free[::3])
    banned = client.ask(PROMPT, 30, bad_words=bad_words, **sampled).tokens
    assert len(banned) == 30
    assert not set(banned) & {word[0] for word in bad_words}
    assert client.ask(PROMPT, 30, bad_words=bad_words, **sampled).tokens == banned
    assert client.ask(PROMPT, 30, bad_words=bad_words, **(sampled | {"seed": 6})).tokens != banned


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}])
def test_nothing_left_to_say_is_an_error_of_its_own_request(client: Any, fields: dict[str, Any]) -> None:
    everything = tuple((token,) for token in range(400))
    reply = client.ask(PROMPT, 4, bad_words=everything, **fields)
    assert reply.chunks[0].message == "the bad words leave no token to go on with"
    assert client.ask(PROMPT, 4).reason is FinishReason.LENGTH


def test_end_id_is_honoured_after_a_ban(client: Any, next_logits: NextLogits) -> None:
    bad_words = ((client.ask(PROMPT, 4).tokens[3],),)
    expected = greedy(next_logits, bad_words, 20)
    end_id = expected[8]
    reply = client.ask(PROMPT, 20, bad_words=bad_words, end_id=end_id)
    assert reply.reason is FinishReason.END_ID
    assert reply.tokens == expected[: expected.index(end_id)]


def test_bans_in_company_change_no_one_else(client: Any) -> None:
    free = client.ask(PROMPT, 24).tokens
    banned = client.ask(PROMPT, 24, bad_words=((free[6],),)).tokens
    replies = [client.start(PROMPT, 24, bad_words=((free[6],),) if i % 2 else ()) for i in range(8)]
    assert [reply.wait().tokens for reply in replies] == [banned if i % 2 else free for i in range(8)]
    assert client.engine.stats().waiting == 0


def test_surface_variants_cover_the_space_before(tokenizer: Any) -> None:
    vocabulary = TextVocabulary(tokenizer)
    plain, spaced = vocabulary.encode("fox"), vocabulary.encode(" fox")
    assert plain != spaced
    for given in (plain, spaced):
        assert {tuple(plain), tuple(spaced)} <= set(surface_variants([given, ()], vocabulary))
    assert Bans(((7,), (1, 2), (3, 2))).completing([9, 1]) == {7, 2}
    assert Bans(((1, 2, 3),)).completing([2]) == set()


def test_stop_words_end_the_text_before_them(text_client: Any, tokenizer: Any) -> None:
    vocabulary = TextVocabulary(tokenizer)
    whole = vocabulary.decode(text_client.ask(PROMPT, 60).tokens)
    for start, length in ((3, 1), (20, 2), (30, 4), (11, 7)):
        stop = whole[start : start + length]
        reply = text_client.ask(PROMPT, 60, stop_words=(tuple(vocabulary.encode(stop)), ()))
        assert vocabulary.decode(reply.tokens) == whole[: whole.index(stop)]
        assert reply.reason is FinishReason.STOP_WORDS


def test_stop_words_without_a_tokenizer_are_token_sequences(client: Any) -> None:
    free = client.ask(PROMPT, 20).tokens
    reply = client.ask(PROMPT, 20, stop_words=(tuple(free[7:9]),), return_log_probs=True)
    at = next(i for i in range(20) if free[i : i + 2] == free[7:9])
    assert (reply.tokens, reply.reason) == (free[:at], FinishReason.STOP_WORDS)
    assert sum(len(chunk.log_probs) for chunk in reply.chunks) == at


def test_special_token_as_stop_word(text_client: Any, tokenizer: Any) -> None:
    assert tokenizer.token_to_id("<|im_end|>") == 1
    reply = text_client.ask(PROMPT, 8, stop_words=((1,),))
    assert reply.reason is FinishReason.LENGTH


def test_stop_word_within_a_character_is_refused(text_client: Any, tokenizer: Any) -> None:
    half = TextVocabulary(tokenizer).encode("é")[:1]
    whole = len(TextVocabulary(tokenizer).encode("é")) == 1
    reply = text_client.ask(PROMPT, 8, stop_words=(tuple(half),))
    assert whole or "ends within a character" in reply.chunks[0].message
