"""How fast the queue drains, so that a refused client can be told when to come back."""

from __future__ import annotations

_MEMORY = 0.9
"""Weight of the past at each dispatch: about the last ten count."""
_ASSUMED_PREFILL_S = 0.4
"""Time in which an engine is taken to prefill a full zone (1.5 steps of its packed tokens) until it was measured."""
_PUSHBACK_MS = (50, 30_000)


class DrainMeter:
    """Measures prompt tokens dispatched per second, starting from an assumed rate."""

    def __init__(self, prefill_tokens: int) -> None:
        self.assumed_rate = prefill_tokens / _ASSUMED_PREFILL_S
        self._tokens = float(prefill_tokens)
        self._time_s = _ASSUMED_PREFILL_S
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
            self._time_s = self._time_s * _MEMORY + (now_s - self._mark_s)
            self._mark_s = now_s

    def pushback_ms(self, tokens: int, now_s: float) -> int:
        """Return when ``tokens`` will have drained; a standstill since the last dispatch counts as time spent."""
        standstill_s = now_s - self._mark_s if self._mark_s is not None else 0.0
        wait_ms = 1000 * tokens * (self._time_s + standstill_s) / self._tokens
        return int(min(max(wait_ms, _PUSHBACK_MS[0]), _PUSHBACK_MS[1]))
