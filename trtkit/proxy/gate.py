"""Admission on an event loop: its decisions wake waiters, its timers run."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trtkit.proxy.admission import (
    Abort,
    Admission,
    Bound,
    Constraint,
    Decision,
    Dispatch,
    EngineReport,
    Reason,
    Record,
    Request,
)
from trtkit.proxy.ending import Refusal

Clock = Callable[[], float]
log = logging.getLogger(__name__)
OnAbort = Callable[[Reason, "int | None"], None]
"""Takes why a request that runs is to be answered and stopped, and the milliseconds until a retry."""


@dataclass
class _Entry:
    turn: asyncio.Future[Record | None]
    on_abort: OnAbort


class Gate:
    """The one host of an :class:`Admission`; not for use from other threads."""

    def __init__(self, admission: Admission, clock: Clock) -> None:
        self.admission = admission
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._timer: asyncio.TimerHandle | None = None

    def refuse_early(self, priority: int, tenant: str = "") -> None:
        """Refuse, before it costs anything, a request that would find the queue full.

        Raises:
            Refusal: The queue is full and the request cannot displace anybody.
        """
        if self.admission.would_refuse(priority, tenant):
            reason = Reason.QUEUE_FULL
            pushback_ms = self.admission.pushback_ms(reason, priority, 0, self._clock())
            bound = Bound(Constraint.QUEUE, *self.admission.fill(priority))
            raise Refusal(reason, pushback_ms=_spread(pushback_ms), bound=bound)

    async def enter(self, request: Request, on_abort: OnAbort) -> Record:
        """Wait for the request's turn; from then on ``on_abort`` may be called once, and ``leave`` must be.

        Returns the record of the decision.

        Raises:
            Refusal: The request will not be served.
        """
        turn = asyncio.get_running_loop().create_future()
        self._entries[request.id] = _Entry(turn, on_abort)
        self._apply(self.admission.offer(request, self._clock()))
        record: Record | None = await turn
        assert record is not None  # noqa: S101 - for the type checker
        return record

    def first_token(self, request_id: str, tokens: int) -> None:
        """Note the first token, and those that came with it."""
        self._apply(self.admission.first_token(request_id, self._clock(), tokens))

    def token(self, request_id: str, tokens: int) -> None:
        """Note further tokens."""
        self.admission.token(request_id, self._clock(), tokens)

    def cancel(self, request_id: str, reason: Reason) -> None:
        """End a request early, wherever it is."""
        self._apply(self.admission.cancel(request_id, self._clock(), reason))

    def leave(self, request_id: str) -> None:
        """Note that the engine has let go of the request."""
        self._entries.pop(request_id)
        self._apply(self.admission.finish(request_id, self._clock()))

    def observe(self, report: EngineReport | None, backend: int = 0) -> None:
        """Take in what an engine says of itself."""
        ledger = self.admission.backends[backend].ledger
        before = ledger.kv_limit, ledger.most_slots
        self._apply(self.admission.observe(backend, report, self._clock()))
        now, zones = (ledger.kv_limit, ledger.most_slots), ledger.zones
        if now not in {before, (zones.kv_tokens, zones.decode_slots)}:
            said = "engine %d has %.0f KV tokens and %.0f slots to give, the contract hands out %d and %d"
            log.warning(said, backend, *now, zones.kv_tokens, zones.decode_slots)

    def eject(self, backend: int) -> None:
        """Send an engine nothing more until it is readmitted."""
        self._apply(self.admission.eject(backend, self._clock()))

    def readmit(self, backend: int) -> None:
        """Send an engine requests again."""
        self._apply(self.admission.readmit(backend, self._clock()))

    def drain(self) -> None:
        """Refuse all that wait and all that come."""
        self._apply(self.admission.drain(self._clock()))

    def _apply(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self._entries[decision.id].turn.set_result(decision.record)
            elif isinstance(decision, Abort):
                self._entries[decision.id].on_abort(decision.reason, _spread(decision.pushback_ms))
            else:
                pushback_ms = _spread(decision.pushback_ms)
                refusal = Refusal(decision.reason, pushback_ms=pushback_ms, record=decision.record)
                self._entries.pop(decision.id).turn.set_exception(refusal)
        self._set_timer()

    def _set_timer(self) -> None:
        due_s = self.admission.next_expiry_s()
        if self._timer is not None:
            self._timer.cancel()
        delay_s = None if due_s is None else max(0.0, due_s - self._clock())
        self._timer = (
            None if delay_s is None else asyncio.get_running_loop().call_later(delay_s, self._expire)
        )

    def _expire(self) -> None:
        self._apply(self.admission.expire(self._clock()))


def _spread(pushback_ms: int | None) -> int | None:
    """Spread the times to come back by a fifth, so that those who were refused together do not come back together."""
    if pushback_ms is None or pushback_ms < 0:
        return pushback_ms
    return round(pushback_ms * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
