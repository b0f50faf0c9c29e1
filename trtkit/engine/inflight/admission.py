"""Which requests the engine refuses, and the sentence that says why."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.engine.inflight.limits import Limits
from trtkit.engine.inflight.request import GenerationRequest


def refusal(request: GenerationRequest, limits: Limits) -> str | None:
    """Return the first reason why this engine cannot take the request, or None."""
    return next((message for wrong, message in _checks(request, limits) if wrong), None)


def _checks(request: GenerationRequest, limits: Limits) -> Iterator[tuple[bool, str]]:
    yield from _length_checks(request, limits)
    yield from _sampling_checks(request)
    for name in ("input_ids", "stop_words", "bad_words"):
        lists = [request.input_ids] if name == "input_ids" else getattr(request, name)
        wrong = next(
            (token for tokens in lists for token in tokens if not 0 <= token < limits.vocab_size), None
        )
        yield wrong is not None, f"{name} holds token {wrong}; the vocabulary has {limits.vocab_size}"


def _length_checks(request: GenerationRequest, limits: Limits) -> Iterator[tuple[bool, str]]:
    prompt, output = len(request.input_ids), request.max_tokens
    blocks = limits.blocks_for(prompt + output)
    asked = f"prompt of {prompt} tokens plus max_tokens {output}"
    yield prompt == 0, "prompt has no tokens"
    yield output < 1, f"max_tokens is {output}, it must be at least 1"
    yield (
        prompt > limits.max_input_len,
        f"prompt has {prompt} tokens, max_input_len is {limits.max_input_len}",
    )
    yield (
        prompt + output > limits.max_seq_len,
        f"{asked} is {prompt + output}, max_seq_len is {limits.max_seq_len}",
    )
    yield (
        blocks > limits.kv_blocks,
        f"{asked} needs {blocks} KV blocks of {limits.tokens_per_block} tokens, the pool has {limits.kv_blocks}",
    )


def _sampling_checks(request: GenerationRequest) -> Iterator[tuple[bool, str]]:
    ranges = (
        ("temperature", 0.0, float("inf")),
        ("top_k", 0, 2**31 - 1),
        ("top_p", 0.0, 1.0),
        ("min_tokens", 0, request.max_tokens),
        ("seed", 0, 2**64 - 1),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
    )
    for name, low, high in ranges:
        value = getattr(request, name)
        yield (
            value is not None and not low <= value <= high,
            f"{name} is {value}, it must be in [{low}, {high}]",
        )
    penalty = request.repetition_penalty
    yield penalty is not None and not penalty > 0, f"repetition_penalty is {penalty}, it must be above 0"
