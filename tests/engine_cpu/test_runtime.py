"""The engine as its callers meet it: requests in, chunks out."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtkit.engine.cpu.runtime import CpuEngine
from trtkit.engine.inflight.request import FinishReason, GenerationRequest, TokenChunk

RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 400, size).tolist() for size in (5, 31, 32, 33, 64, 100, 150, 190) * 4]
SAMPLED: dict[str, Any] = {"temperature": 1.5, "top_k": 50, "top_p": 0.95}


def wait_until(condition: Any, limit_s: float = 10.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit_s
        time.sleep(0.005)
    return time.monotonic() - start


def with_pool(engine_dir: Path, copy: Path, kv_blocks: int) -> Path:
    shutil.copytree(engine_dir, copy)
    config = json.loads((engine_dir / "config.json").read_text())
    config["build_config"]["kv_blocks"] = kv_blocks
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_greedy_text_is_the_same_whoever_else_is_served(client: Any) -> None:
    alone = [client.ask(prompt).tokens for prompt in PROMPTS]
    eight = [reply.wait().tokens for reply in [client.start(prompt) for prompt in PROMPTS[:8]]]
    everyone = [reply.wait().tokens for reply in [client.start(prompt) for prompt in PROMPTS]]
    assert everyone == alone
    assert eight == alone[:8]
    assert len({tuple(tokens) for tokens in alone}) > 16  # the model does not say one thing to all


def test_reused_prefix_changes_nothing(client: Any) -> None:
    prompt = RNG.integers(0, 400, 190).tolist()
    fresh = client.ask(prompt[:170]).tokens
    client.ask(prompt)
    assert client.ask(prompt[:170]).tokens == fresh


def test_seeded_sampling_repeats_in_company(client: Any) -> None:
    alone = client.ask(PROMPTS[5], seed=11, **SAMPLED).tokens
    others = [client.start(prompt, seed=12, **SAMPLED) for prompt in PROMPTS[:6]]
    assert client.ask(PROMPTS[5], seed=11, **SAMPLED).tokens == alone
    assert others[5].wait().tokens != alone


@pytest.mark.parametrize(
    "fields", [{"top_k": 1, "temperature": 9.0}, {"top_k": 0}, {"temperature": 0.0}, {"top_p": 1.0}]
)
def test_no_draw_asked_for_is_greedy(client: Any, fields: dict[str, Any]) -> None:
    assert client.ask(PROMPTS[3], **fields).tokens == client.ask(PROMPTS[3]).tokens


def test_end_id_stops_and_is_not_emitted(client: Any) -> None:
    free = client.ask(PROMPTS[1]).tokens
    end_id = free[6]
    at = free.index(end_id)
    reply = client.ask(PROMPTS[1], end_id=end_id)
    assert (reply.tokens, reply.reason) == (free[:at], FinishReason.END_ID)
    later = client.ask(PROMPTS[1], end_id=end_id, min_tokens=at + 2)
    assert later.tokens[:at] == free[:at]
    assert len(later.tokens) >= at + 2
    assert end_id not in later.tokens


def test_chunks_come_one_by_one_unless_streaming_is_off(client: Any) -> None:
    streamed = client.ask(PROMPTS[2])
    whole = client.ask(PROMPTS[2], streaming=False)
    assert len(streamed.chunks) > 12
    assert len(whole.chunks) == 1
    assert whole.tokens == streamed.tokens
    assert whole.reason is FinishReason.LENGTH


def test_log_probs_of_the_chosen_tokens(client: Any) -> None:
    reply = client.ask(PROMPTS[2], return_log_probs=True)
    log_probs = [value for chunk in reply.chunks for value in chunk.log_probs]
    assert len(log_probs) == len(reply.tokens)
    assert max(log_probs) <= 0 > min(log_probs)
    assert reply.chunks[-1].cum_log_prob == pytest.approx(sum(log_probs))
    assert client.ask(PROMPTS[2]).chunks[0].log_probs is None


@pytest.mark.parametrize(
    ("prompt", "fields", "said"),
    [
        ([1] * 201, {}, "prompt has 201 tokens, max_input_len is 200"),
        ([1] * 200, {"max_tokens": 101}, "is 301, max_seq_len is 300"),
        ([], {}, "no tokens"),
        ([400], {}, "input_ids holds token 400; the vocabulary has 400"),
        ([1], {"stop_words": ((2,), (-1,))}, "stop_words holds token -1"),
        ([1], {"max_tokens": 0}, "max_tokens is 0"),
        ([1], {"top_p": 1.5}, "top_p is 1.5"),
        ([1], {"temperature": float("nan")}, "temperature is nan"),
        ([1], {"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ],
)
def test_impossible_requests_are_refused_with_numbers(
    client: Any, prompt: Any, fields: Any, said: str
) -> None:
    reply = client.ask(prompt, **fields)
    assert [chunk.finish_reason for chunk in reply.chunks] == [FinishReason.ERROR]
    assert said in reply.chunks[0].message
    assert client.ask(PROMPTS[0], 2).reason is FinishReason.LENGTH


def test_limits_themselves_are_allowed(client: Any) -> None:
    assert len(client.ask([1] * 200, max_tokens=100).tokens) == 100


def test_live_request_ids_are_unique(client: Any) -> None:
    first = client.start(PROMPTS[7], 100, request_id="twin")
    second = client.ask(PROMPTS[7], request_id="twin")
    assert "'twin' is still running" in second.chunks[0].message
    assert len(first.wait().tokens) == 100
    assert client.ask(PROMPTS[7], 2, request_id="twin").reason is FinishReason.LENGTH


def test_cancel_ends_at_once_and_frees_the_cache(client: Any) -> None:
    replies = [client.start(prompt, 100, request_id=f"c{i}") for i, prompt in enumerate(PROMPTS)]
    wait_until(lambda: replies[0].chunks)
    stats = client.engine.stats()
    assert stats.active > 0 < stats.kv_blocks_used <= stats.kv_blocks_max
    for i in range(len(replies)):
        client.engine.cancel(f"c{i}")
    assert {reply.wait().reason for reply in replies} == {FinishReason.CANCELLED}
    wait_until(lambda: client.engine.stats().kv_blocks_used == 0)
    stats = client.engine.stats()
    assert (stats.active, stats.waiting, stats.tokens_per_block) == (0, 0, 32)


def test_cancelled_before_the_first_token(client: Any) -> None:
    reply = client.start(PROMPTS[7], 100, request_id="early")
    client.engine.cancel("early")
    assert reply.wait().reason is FinishReason.CANCELLED
    assert client.ask(PROMPTS[0], 3).reason is FinishReason.LENGTH


def test_receivers_bug_stops_its_request_only(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(chunk: TokenChunk) -> None:
        raise ZeroDivisionError

    client.engine.submit(GenerationRequest("broken", PROMPTS[1], 50), broken)
    client.engine.submit(GenerationRequest("refused", [], 50), broken)
    assert client.ask(PROMPTS[1], 5).reason is FinishReason.LENGTH
    wait_until(lambda: client.engine.stats().active == 0)
    assert "ZeroDivisionError" in caplog.text


def test_cancelled_prompts_leave_no_half_filled_blocks(client: Any, serve: Any, engine_dir: Path) -> None:
    """Prompts are prefilled in pieces of 128 tokens; what was cancelled between two pieces is asked again."""
    expected = [client.ask(prompt, 40).tokens for prompt in PROMPTS]
    for steps in range(1, 5):
        fresh = serve(engine_dir)
        replies = [fresh.start(prompt, 40, request_id=f"{steps}.{i}") for i, prompt in enumerate(PROMPTS)]
        wait_until(lambda replies=replies, steps=steps: len(replies[0].chunks) >= steps)
        for i in range(len(PROMPTS)):
            fresh.engine.cancel(f"{steps}.{i}")
        assert [fresh.ask(prompt, 40).tokens for prompt in PROMPTS] == expected


def test_small_pool_delays_but_changes_nothing(
    client: Any, serve: Any, engine_dir: Path, tmp_path: Path
) -> None:
    """Requests of up to 9 blocks with common prefixes, and their follow-ups, on a pool of 20."""
    base = RNG.integers(0, 400, 190).tolist()
    prompts = [base[: 20 + 11 * i] for i in range(15)]
    small = serve(with_pool(engine_dir, tmp_path / "engine", 20))
    for _ in range(2):
        expected = [client.ask(prompt, 60).tokens for prompt in prompts]
        replies = [small.start(prompt, 60) for prompt in prompts]
        assert [reply.wait().tokens for reply in replies] == expected
        prompts = [[*(prompt + tokens)[:190], 7] for prompt, tokens in zip(prompts, expected, strict=True)]


def test_only_what_can_finish_enters(serve: Any, engine_dir: Path, tmp_path: Path) -> None:
    """Nine blocks each on a pool of 20: two run, four wait, none is evicted."""
    small = serve(with_pool(engine_dir, tmp_path / "engine", 20))
    replies = [small.start([i] * 100, 188) for i in range(6)]
    wait_until(lambda: small.engine.stats().active == 2)
    assert small.engine.stats().waiting == 4
    while not all(reply.done.is_set() for reply in replies):
        assert small.engine.stats().active <= 2
        time.sleep(0.005)
    first_seen = [reply.first_s for reply in replies]
    assert first_seen == sorted(first_seen)


def test_request_larger_than_the_pool_is_refused(serve: Any, engine_dir: Path, tmp_path: Path) -> None:
    small = serve(with_pool(engine_dir, tmp_path / "engine", 4))
    said = "prompt of 100 tokens plus max_tokens 29 needs 5 KV blocks of 32 tokens, the pool has 4"
    assert small.ask(PROMPTS[5], 29).chunks[0].message == said
    assert len(small.ask(PROMPTS[5], 28).tokens) == 28


def test_failed_step_ends_everything_and_says_so(
    serve: Any, engine_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("out of memory")

    client = serve(engine_dir)
    monkeypatch.setattr(client.engine._pipeline, "step", broken)
    assert "out of memory" in client.ask(PROMPTS[0]).chunks[0].message
    assert "out of memory" in client.ask(PROMPTS[0]).chunks[0].message
    assert "out of memory" in client.engine.failure


def test_closing_ends_what_is_live_and_refuses_what_comes_later(engine_dir: Path) -> None:
    engine = CpuEngine(engine_dir)
    chunks: list[TokenChunk] = []
    engine.submit(GenerationRequest("a", PROMPTS[5], 100), chunks.append)
    wait_until(lambda: chunks)
    engine.close()
    engine.close()
    assert chunks[-1].finish_reason is FinishReason.CANCELLED
    engine.submit(GenerationRequest("b", PROMPTS[5], 100), chunks.append)
    assert chunks[-1].message == "the engine is closed"
    assert not engine._thread.is_alive()
