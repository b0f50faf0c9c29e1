"""How fast the queue drains, so that a refused client can be told when to come back."""

from __future__ import annotations

from trtkit.plan.types import Zones

_MEMORY = 0.9
"""Weight of the past at each dispatch: about the last ten count."""
ASSUMED_S = 0.4
"""Time in which an engine is taken to drain full zones until it was measured: 1.5 steps of packed tokens."""
_PUSHBACK_MS = (50, 30_000)


class DrainMeter:
    """Measures what is dispatched per second while requests wait, starting from an assumed rate.

    Prompt tokens and requests are measured apart: either prefill or the decode slots may be what holds up the queue.
    """

    def __init__(self, zones: Zones) -> None:
        self._tokens = float(zones.prefill_tokens)
        self._requests = float(zones.decode_slots)
        self._time_s = ASSUMED_S
        self._mark_s: float | None = None

    def begin(self, now_s: float) -> None:
        """Note that requests wait from now on."""
        if self._mark_s is None:
            self._mark_s = now_s

    def pause(self) -> None:
        """Note that nothing waits: idle time says nothing about the rate."""
        self._mark_s = None

    def record(self, tokens: int, now_s: float) -> None:
        """Count a dispatch while requests waited."""
        if self._mark_s is not None:
            self._tokens = self._tokens * _MEMORY + tokens
            self._requests = self._requests * _MEMORY + 1
            self._time_s = self._time_s * _MEMORY + (now_s - self._mark_s)
            self._mark_s = now_s

    def pushback_ms(self, requests: int, tokens: int, now_s: float) -> int:
        """Return when so much will have drained; a standstill since the last dispatch counts as time spent."""
        standstill_s = now_s - self._mark_s if self._mark_s is not None else 0.0
        share = max(tokens / self._tokens, requests / self._requests)
        wait_ms = 1000 * share * (self._time_s + standstill_s)
        return int(min(max(wait_ms, _PUSHBACK_MS[0]), _PUSHBACK_MS[1]))
