"""How much the proxy lets through, and in which order."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trtkit.contract.scalars import Fraction, Milliseconds, Tokens
from trtkit.contract.scheduling import Order
from trtkit.contract.section import Section


class Admission(Section):
    """How much the proxy lets through and how much it lets wait."""

    kv_fraction: Fraction = 0.75
    """Share of the KV pool that admitted requests may reserve; the rest is headroom."""
    max_queue: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Requests that may wait for one pool; less urgent ones take no place from more urgent ones."""
    max_queue_tokens: Tokens | None = None
    """Prompt tokens that may wait for one pool, counted in the same way; left out, only requests are counted."""
    proxies: Annotated[int, Field(ge=1, le=1024)] = 1
    """Proxies in front of the same engines: each hands out its equal part of every zone, whatever the others do."""
    starvation_ms: Milliseconds = 30_000.0
    """A request that waited this long goes before every band, within ``minimum_share``: nobody waits for ever."""
    holdback: Annotated[tuple[Fraction, ...], Field(min_length=1, max_length=16, strict=False)] = (
        1.0,
        0.9,
        0.6,
    )
    """Share of each zone that a band may fill: the first is the most urgent band's, the last the least urgent one's."""
    order: Annotated[Order, Field(strict=False)] = Order.HYBRID
    """Who of one tenant's requests in a band goes first."""
    prefill_ms: Milliseconds = 100.0
    """Prefill work in flight per engine, at least one and a half engine steps."""
    refusal_margin: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = 1.2
    """Factor on the predicted prefill time before a request is refused because its first token would come too late."""
    feedback: bool = True
    """Send fewer prompt tokens at once while promises are missed at the engine."""
    skip_ahead: Annotated[int, Field(ge=0, le=1000)] = 8
    """Smaller requests that may pass one of their band that does not fit yet."""
    minimum_share: Annotated[float, Field(ge=0.01, le=0.5, allow_inf_nan=False)] = 0.05
    """Share of the prompt tokens for who has starved, and for the least urgent band that may not be shed, whatever
    waits above."""
    length_buckets: Annotated[tuple[Tokens, ...], Field(max_length=8, strict=False)] = (2048, 8192, 32768)
    """Upper ends of the prompt lengths that are told apart in metrics and decisions."""

    @model_validator(mode="after")
    def _numbers_are_in_order(self) -> Admission:
        if list(self.holdback) != sorted(self.holdback, reverse=True):
            raise ValueError("holdback grows: a less urgent band may not fill more than a more urgent one")
        if list(self.length_buckets) != sorted(set(self.length_buckets)):
            raise ValueError("length_buckets must grow: each is the upper end of one bucket")
        return self
