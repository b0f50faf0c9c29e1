"""From a client's bytes to a request that admission can judge: class, shape, size, limits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trtkit.contract.service import ServiceClass
from trtkit.conventions import CLASS_HEADER
from trtkit.plan.types import EngineLimits
from trtkit.proxy.admission import NO_TERMS, Reason, Request, Terms, TimeLimits
from trtkit.proxy.ending import Refusal
from trtkit.proxy.wire.dialect import Dialect
from trtkit.proxy.wire.prompt import PromptCounter
from trtkit.proxy.wire.request import LlmRequest
from trtkit.proxy.wire.schema import ModelSchema

_PREFIX_BYTES = 2048
"""A few blocks of a KV cache, in text and in tokens: enough to tell conversations and system prompts apart."""
LimitsOf = Callable[[int], EngineLimits]


@dataclass(frozen=True)
class Size:
    """What a request takes."""

    prompt_tokens: int
    max_tokens: int
    clipped: bool
    """Whether the client had asked for more."""


def only(header: str, values: Sequence[str]) -> str | None:
    """Return a header's one value, or None without it.

    Raises:
        Refusal: It came more than once, with values that differ.
    """
    if len(values) > 1:
        said = " and ".join(repr(value[:64]) for value in values[:4])
        raise Refusal(Reason.INVALID_INPUT, f"{header} contradicts itself: {said}")
    return values[0] if values else None


def choose_class(
    classes: Mapping[str, ServiceClass], fallback: str, header: str | None, priority: int
) -> str:
    """Return the class that the client named by header, else by Triton's ``priority`` (0 is the default)."""
    if header is not None:
        if header in classes:
            return header
        raise Refusal(
            Reason.UNKNOWN_CLASS, f"{CLASS_HEADER} is {header[:64]!r}, the classes are {', '.join(classes)}"
        )
    if priority == 0:
        return fallback
    named = [name for name, promise in classes.items() if promise.priority == priority]
    if len(named) == 1:
        return named[0]
    if named:
        shared = ", ".join(named)
        raise Refusal(
            Reason.BAD_PRIORITY,
            f"priority {priority} is that of {shared}: name one of them in {CLASS_HEADER}",
        )
    valid = ", ".join(f"{promise.priority} ({name})" for name, promise in classes.items())
    raise Refusal(
        Reason.BAD_PRIORITY, f"priority {priority} belongs to no class; valid are 0 (default), {valid}"
    )


def add_default_output(call: LlmRequest, promise: ServiceClass, schema: ModelSchema) -> bool:
    """Give a request that names no length of the answer the one of its class; tell whether that was so."""
    length = schema.need_dialect().length
    wanted = length.read(call)
    # Written even where it stays: vLLM takes the parameters of a request for sampling's, those of the proxy too.
    length.write(call, schema, promise.default_output_tokens if wanted is None else wanted)
    return wanted is None


async def measure(
    call: LlmRequest, schema: ModelSchema, promise: ServiceClass, limits_of: LimitsOf, counter: PromptCounter
) -> Size:
    """Count the prompt, settle the length of the answer, and refuse what can never be served.

    ``limits_of`` tells the limits of the engines that take so long a prompt. An answer longer than the class or the
    engine allows is clipped, not refused.
    """
    dialect = schema.need_dialect()
    dialect.check(call.tensors)
    prompt_tokens = await _count_prompt(call, dialect, promise, limits_of, counter)
    limits = limits_of(prompt_tokens)
    room = limits.max_seq_len - prompt_tokens
    if room < 1:
        raise Refusal(
            Reason.TOO_LONG,
            f"the prompt has {prompt_tokens} tokens, which leaves no room for an answer in {limits.max_seq_len}",
        )
    wanted = dialect.length.read(call)
    if wanted is None:
        wanted = promise.default_output_tokens
    if wanted < 1:
        raise Refusal(Reason.INVALID_INPUT, f"{dialect.length.name} is {wanted}, it must be at least 1")
    max_tokens = min(wanted, room, promise.max_output_tokens or room)
    if max_tokens < wanted:
        dialect.length.write(call, schema, max_tokens)
    return Size(prompt_tokens, max_tokens, clipped=max_tokens < wanted)


async def _count_prompt(
    call: LlmRequest,
    dialect: Dialect,
    promise: ServiceClass,
    limits_of: LimitsOf,
    counter: PromptCounter,
) -> int:
    if dialect.is_tokens:
        prompt_tokens = call.prompt_width()
        _check_prompt(prompt_tokens, promise, limits_of(prompt_tokens))
        return prompt_tokens
    text = call.tensors.text(dialect.prompt)
    _check_prompt(counter.at_least(text), promise, limits_of(sys.maxsize), "at least ")
    prompt_tokens = await counter.count(text)
    _check_prompt(prompt_tokens, promise, limits_of(prompt_tokens))
    return prompt_tokens


def _check_prompt(tokens: int, promise: ServiceClass, limits: EngineLimits, about: str = "") -> None:
    if tokens > limits.max_input_len:
        raise Refusal(
            Reason.TOO_LONG, f"the prompt has {about}{tokens} tokens, the engine takes {limits.max_input_len}"
        )
    if promise.max_prompt_tokens is not None and tokens > promise.max_prompt_tokens:
        raise Refusal(
            Reason.OVER_CLASS_LIMIT,
            f"the prompt has {about}{tokens} tokens, its class may have {promise.max_prompt_tokens}",
        )


def to_request(
    upstream_id: str,
    class_name: str,
    promise: ServiceClass,
    size: Size,
    *,
    arrival_s: float,
    client_s: float = math.inf,
    streams: bool,
    tenant: str = "",
    terms: Terms = NO_TERMS,
    beams: int = 1,
    affinity: int = 0,
) -> Request:
    """Put together what admission judges."""
    return Request(
        id=upstream_id,
        class_name=class_name,
        priority=promise.priority,
        prompt_tokens=size.prompt_tokens,
        max_tokens=size.max_tokens,
        arrival_s=arrival_s,
        limits=TimeLimits.of(promise, client_s=client_s, streams=streams),
        sheddable=promise.sheddable,
        streams=streams,
        tenant=tenant,
        # A request that does not stream shows no first token, so it is not held to a promise about it.
        terms=terms if streams else replace(terms, ttft_s=math.inf),
        beams=beams,
        affinity=affinity,
    )


def affinity_of(call: LlmRequest, dialect: Dialect, session: str | None) -> int:
    """Return what requests have in common whose KV an engine may reuse: their session, else how their prompts begin."""
    return hash(session or call.tensors.start(dialect.prompt, _PREFIX_BYTES))
