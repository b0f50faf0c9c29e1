"""The backstop: prompt tokens in flight shrink when promises are missed behind them, and grow back while used."""

from __future__ import annotations

import math

from trtkit.proxy.admission.request import Ticket

_SHRINK = 0.85
_WINDOW = 20
"""First tokens without a miss after which the limit may grow."""
_LATE_SHARE = 0.6
"""Part of a first-token promise that the engine may take of it."""


class Feedback:
    """Additive increase, multiplicative decrease, in tokens.

    A flight is judged once: what was sent before the last cut says nothing about the limit after it. The limit does not
    grow unless it was what held requests back, so it never winds up while traffic is low. The floor of one request is
    the ledger's.
    """

    def __init__(self, limit_tokens: int, step_tokens: int, *, active: bool = True) -> None:
        self._active = active
        self._cut = math.inf
        self._step_tokens = step_tokens
        self._floor = min(limit_tokens, step_tokens) / 2
        self._last_cut_s = -math.inf
        self._clean = 0
        self._used = False

    @property
    def binds(self) -> bool:
        """Whether it is below what the zone allows."""
        return self._cut < math.inf

    def note_use(self) -> None:
        """Note that the prefill limit held somebody back."""
        self._used = True

    def limit(self, wanted_tokens: float) -> float:
        """Return what may be in flight of what is wanted."""
        if self._cut >= wanted_tokens:
            self._cut = math.inf
        return min(wanted_tokens, self._cut)

    def first_token(self, ticket: Ticket, now_s: float, judge: bool) -> None:
        """Judge a first token, when the queue before it was more than half of its delay."""
        late_s = _LATE_SHARE * ticket.request.terms.ttft_s
        delay_s, own = now_s - ticket.dispatched_s, ticket.request.prompt_tokens
        if delay_s > late_s and ticket.flight_tokens > 2 * own and judge:
            self._shrink(ticket, now_s)
        else:
            self._count_clean()

    def finished(self, ticket: Ticket, tpot_s: float, now_s: float) -> None:
        """Judge the time per token of a request that has ended."""
        if tpot_s > ticket.request.terms.tpot_s:
            self._shrink(ticket, now_s)

    def _shrink(self, ticket: Ticket, now_s: float) -> None:
        self._clean, self._used = 0, False
        if self._active and ticket.dispatched_s >= self._last_cut_s:
            self._last_cut_s = now_s
            present = ticket.backend.ledger.prefill_limit if ticket.backend else self._cut
            self._cut = max(self._floor, min(self._cut, present) * _SHRINK)

    def _count_clean(self) -> None:
        self._clean += 1
        if self._clean >= _WINDOW and self._used:
            self._cut += self._step_tokens
            self._clean, self._used = 0, False
