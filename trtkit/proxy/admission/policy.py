"""The policy: every event goes in with its time, the decisions it causes come out."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.scheduling import OnInfeasible
from trtkit.plan.types import Zones
from trtkit.proxy.admission.answers import Answers
from trtkit.proxy.admission.backend import Backend, backend_of
from trtkit.proxy.admission.decision import Abort, Decision, Dispatch, Refuse, record_of
from trtkit.proxy.admission.outcome import FIXED_PUSHBACK_MS, Reason, Retry
from trtkit.proxy.admission.pool import Pool, PoolSpec
from trtkit.proxy.admission.queue import RELEGATED
from trtkit.proxy.admission.record import Constraint, Record
from trtkit.proxy.admission.request import (
    CANCELLING,
    DECODING,
    DONE,
    PREFILLING,
    QUEUED,
    Request,
    State,
    Ticket,
)
from trtkit.proxy.admission.signal import EngineReport
from trtkit.proxy.admission.timers import Timers

_IN_FLIGHT = (PREFILLING, DECODING)
_OUTPUT_WEIGHT = 4
"""What an output token costs its tenant, in prompt tokens."""


class Admission:
    """Decides order, refusals and ends. One owner per state: nobody else changes a ticket."""

    def __init__(
        self,
        rules: AdmissionRules,
        zones: Zones,
        tokens_per_block: int,
        *,
        backends: int = 1,
        longer: Sequence[PoolSpec] = (),
    ) -> None:
        """Take ``backends`` engines for all prompts, or for those that no pool for ``longer`` ones takes.

        Engines are numbered from 0 in this order; pools come by the length of their prompts.
        """
        self.rules = rules
        self.pools: list[Pool] = []
        self._starts: list[int] = []
        """From how many prompt tokens on each pool is the one."""
        first = 0
        for spec in (PoolSpec(zones, tokens_per_block, backends), *longer):
            indices = range(first, first + spec.backends)
            self.pools.append(Pool(rules, spec.zones, spec.tokens_per_block, indices))
            self._starts.append(spec.min_prompt_tokens)
            first += spec.backends
        self.draining = False
        self._tickets: dict[str, Ticket] = {}
        self._timers = Timers()
        self._states: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(State))
        self._answers = Answers()
        self._waiting = 0

    @property
    def backends(self) -> list[Backend]:
        """All engines, by index."""
        return [backend for pool in self.pools for backend in pool.backends]

    @property
    def buckets(self) -> list[str]:
        """Names of the prompt lengths that are told apart."""
        return [*map(str, self.rules.length_buckets), "inf"]

    @property
    def known_rate(self) -> float:
        """Prompt tokens per second of all engines together, as far as it was measured."""
        return sum(each.rates.tokens_per_s for each in self.backends if each.rates.known)

    def count(self, class_name: str, *states: State) -> int:
        """Return how many requests of a class are in any of the states."""
        return sum(self._states[class_name][state] for state in states)

    def fill(self, priority: int) -> tuple[int, float]:
        """Return how many wait in this band and above and how many may, in the pool that is least full."""
        return min((pool.fill(priority) for pool in self.pools), key=lambda each: each[0] / each[1])

    def would_refuse(self, priority: int, tenant: str = "") -> bool:
        """Tell, before its size and so its pool are known, whether a request would find no place in any queue."""
        alive = [pool for pool in self.pools if pool.alive]
        return bool(alive) and all(pool.is_full(priority, tenant) for pool in alive)

    def pushback_ms(
        self, reason: Reason, priority: int, prompt_tokens: int, now_s: float, pool: Pool | None = None
    ) -> int | None:
        """Return when a refused request may come back: -1 is never, None is nothing to say.

        Before its size is known, it is the pool that will have room first.
        """
        if reason.retry is Retry.BACKLOG:
            pools = [pool] if pool else self.pools
            return min(each.pushback_ms(priority, prompt_tokens, now_s) for each in pools)
        return FIXED_PUSHBACK_MS.get(reason.retry)

    def offer(self, request: Request, now_s: float) -> list[Decision]:
        """Take a new request: it is dispatched, queued, or somebody is refused."""
        pool = self._pool_for(request)
        ledger = pool.backends[0].ledger
        ticket = Ticket(request, ledger.kv_need(request), pool)
        if self.draining:
            ticket.bind(Constraint.SERVER)
            return [self._refusal(ticket, Reason.DRAINING, now_s)]
        if not pool.alive:
            ticket.bind(Constraint.SERVER)
            return [self._refusal(ticket, Reason.NO_BACKEND, now_s)]
        if not ledger.could_fit(ticket):
            ticket.bind(Constraint.KV, ticket.kv_need, ledger.kv_limit)
            return [self._refusal(ticket, Reason.TOO_LONG, now_s)]
        self._tickets[request.id] = ticket
        self._states[request.class_name][QUEUED] += 1
        pool.predict(ticket, now_s)
        if request.limits.total_s < math.inf:
            answer_tokens = self._answers.expected(request.class_name, request.max_tokens) or 0.0
            ticket.leave_time(pool.nearest.answer_s(answer_tokens, now_s))
        decisions = self._greet(ticket, now_s)
        decisions += self._settle(now_s)
        while pool.overfull and (made := self._make_room(ticket, now_s)):
            decisions += made
        if ticket.state is QUEUED:
            self._arm(ticket)
        return decisions

    def first_token(self, request_id: str, now_s: float, tokens: int = 1) -> list[Decision]:
        """Note the end of a prefill, which makes room for the next."""
        ticket = self._tickets[request_id]
        if ticket.state is PREFILLING:
            ticket.last_token_s = now_s
            ticket.tokens += tokens
            backend_of(ticket).first_token(ticket, now_s)
            self._move(ticket, DECODING)
            # Its other ends do not come any sooner than the entry that it has.
            self._timers.arm(ticket, now_s + ticket.request.limits.inter_token_s)
        return self._settle(now_s)

    def token(self, request_id: str, now_s: float, tokens: int = 1) -> None:
        """Note further tokens; the inter-token limit starts again, at no cost to the timers."""
        ticket = self._tickets[request_id]
        ticket.last_token_s = now_s
        ticket.tokens += tokens

    def finish(self, request_id: str, now_s: float, *, tokens: int | None = None) -> list[Decision]:
        """Note that the engine has let go of a dispatched request, whatever the reason.

        ``tokens`` is for a host that does not report each token: how many there were, the last of them now.
        """
        ticket = self._tickets.pop(request_id)
        if tokens is not None:
            ticket.tokens, ticket.last_token_s = tokens, now_s
        self._move(ticket, DONE)
        backend_of(ticket).release(ticket, now_s)
        self._settle_account(ticket)
        return self._settle(now_s)

    def cancel(
        self, request_id: str, now_s: float, reason: Reason = Reason.CLIENT_CANCELLED
    ) -> list[Decision]:
        """End a request early; one that already ended or is being cancelled stays as it is."""
        ticket = self._tickets.get(request_id)
        decisions = [self._end(ticket, reason, now_s)] if ticket and ticket.state is not CANCELLING else []
        return decisions + self._settle(now_s)

    def waiting(self, request_id: str, now_s: float) -> Record | None:
        """Return what binds a request that waits, so far; None for one that does not."""
        ticket = self._tickets.get(request_id)
        waits = ticket is not None and ticket.state is QUEUED
        return record_of(ticket, now_s, self.rules.length_buckets) if ticket and waits else None

    def expire(self, now_s: float) -> list[Decision]:
        """End every request whose time is over."""
        return self._settle(now_s)

    def next_expiry_s(self) -> float | None:
        """Return when :meth:`expire` is to be called next, if ever; it may then find nothing to do."""
        return self._timers.next_s()

    def observe(self, backend: int, report: EngineReport | None, now_s: float) -> list[Decision]:
        """Take in what an engine says of itself, or that it says nothing."""
        self.backends[backend].observe(report, now_s)
        return self._settle(now_s)

    def eject(self, backend: int, now_s: float) -> list[Decision]:
        """Send an engine nothing more until it is readmitted; what it was sent already is left to its own ends.

        Who waits for a pool that has no engine left goes to one for longer prompts, or is refused.
        """
        ejected = self.backends[backend]
        pool = ejected.pool
        pool.eject(ejected)
        decisions: list[Decision] = []
        if not pool.alive:
            for ticket in pool.queue.tickets():
                decisions += self._rehome(ticket, now_s)
        return decisions + self._settle(now_s)

    def readmit(self, backend: int, now_s: float) -> list[Decision]:
        """Send an engine requests again; who waits elsewhere for want of its pool comes back."""
        readmitted = self.backends[backend]
        readmitted.pool.readmit(readmitted)
        waiting = [ticket for pool in self.pools for ticket in pool.queue.tickets()]
        decisions: list[Decision] = []
        for ticket in waiting:
            if self._pool_for(ticket.request) is not ticket.pool:
                decisions += self._rehome(ticket, now_s)
        return decisions + self._settle(now_s)

    def drain(self, now_s: float) -> list[Decision]:
        """Refuse all that wait and all that will come; what runs goes on."""
        self.draining = True
        waiting = [ticket for pool in self.pools for ticket in pool.queue.tickets()]
        return [self._end(ticket, Reason.DRAINING, now_s) for ticket in waiting]

    def _greet(self, newcomer: Ticket, now_s: float) -> list[Decision]:
        """Answer a newcomer at once or let it wait: its time may be over, or too short for its first token."""
        if newcomer.ends_s <= now_s and (reason := newcomer.due()[1]):
            return [self._end(newcomer, reason, now_s)]
        pool = newcomer.pool
        if pool.nearest.is_hopeless(newcomer, now_s):
            never = pool.nearest.trusts_rate(now_s) and not pool.nearest.can_ever(newcomer)
            return self._give_up(
                newcomer, pool.nearest, now_s, Reason.IMPOSSIBLE if never else Reason.HOPELESS
            )
        if pool.is_too_late(newcomer, now_s):
            newcomer.bind(Constraint.BACKLOG, pool.needs_s(newcomer), newcomer.due_s - now_s)
            return self._turn_away(newcomer, Reason.HOPELESS, now_s)
        # Nobody waits whom it would pass: the way through the queue can be spared.
        backend = pool.place_first(newcomer, now_s) if not newcomer.ahead else None
        if backend is not None:
            return [self._dispatch(newcomer, backend, now_s)]
        self._enqueue(newcomer, now_s)
        return []

    def _settle(self, now_s: float) -> list[Decision]:
        decisions: list[Decision] = []
        while due := self._timers.pop(now_s):
            decisions += self._fire(*due, now_s)
        if not self._waiting:
            return decisions
        for pool in self.pools:
            while chosen := self._next(pool, now_s):
                ticket, backend = chosen
                if backend.is_hopeless(ticket, now_s):
                    decisions += self._give_up(ticket, backend, now_s)
                else:
                    decisions.append(self._dispatch(ticket, backend, now_s))
            if pool.stoppable and pool.queue.length and (victim := pool.victim(now_s)):
                decisions.append(self._end(victim, Reason.EVICTED, now_s))
        return decisions

    def _next(self, pool: Pool, now_s: float) -> tuple[Ticket, Backend] | None:
        """Return a pool's next; one that idles takes what waits for those of shorter prompts."""
        if pool.queue.length:
            return pool.next(now_s, pool.queue)
        if not pool.idle:
            return None
        shorter = self.pools[: self.pools.index(pool)]
        return next((found for each in shorter if (found := pool.next(now_s, each.queue))), None)

    def _fire(self, ticket: Ticket, reason: Reason | None, now_s: float) -> list[Decision]:
        if reason is not None:
            return [self._end(ticket, reason, now_s)]
        if ticket.state is QUEUED:
            return self._look(ticket, now_s)
        self._end_prefill(ticket)
        self._arm(ticket)
        return []

    def _look(self, ticket: Ticket, now_s: float) -> list[Decision]:
        """Look at a request that waits so late that its first token may not come in time any more."""
        backend = ticket.pool.nearest
        if backend.is_hopeless(ticket, now_s):
            return self._give_up(ticket, backend, now_s)
        self._arm(ticket, now_s)
        return []

    def _give_up(
        self, ticket: Ticket, backend: Backend, now_s: float, reason: Reason = Reason.HOPELESS
    ) -> list[Decision]:
        """Turn away what cannot come in time even on an idle engine, or has waited for too long."""
        if backend.trusts_rate(now_s):
            ticket.bind(Constraint.PROMISE, backend.alone_s(ticket), ticket.due_s - now_s)
        else:
            arrival_s = ticket.request.arrival_s
            ticket.bind(Constraint.WAIT, now_s - arrival_s, ticket.due_s - arrival_s)
        return self._turn_away(ticket, reason, now_s)

    def _turn_away(self, ticket: Ticket, reason: Reason, now_s: float) -> list[Decision]:
        """Refuse a request, or let it wait behind all others without a promise."""
        if ticket.pool.overfull or ticket.request.terms.on_infeasible is OnInfeasible.REJECT:
            return [self._end(ticket, reason, now_s)]
        self._dequeue(ticket)
        ticket.relegate()
        self._enqueue(ticket, now_s)
        self._arm(ticket)
        return []

    def _enqueue(self, ticket: Ticket, now_s: float) -> None:
        if ticket.blocked_by is Constraint.NONE:
            ticket.bind(Constraint.ORDER, ticket.ahead)
        ticket.pool.queue.push(ticket)
        self._waiting += 1
        ticket.pool.drain.begin(now_s)

    def _arm(self, ticket: Ticket, looked_s: float = -math.inf) -> None:
        if ticket.state is QUEUED:
            ticket.start_by_s = ticket.pool.nearest.start_by_s(ticket, looked_s)
            due_s = min(ticket.ends_s, ticket.start_by_s)
        else:
            due_s, _ = ticket.due()
        self._timers.arm(ticket, due_s)

    def _dispatch(self, ticket: Ticket, backend: Backend, now_s: float) -> Dispatch:
        request, queue = ticket.request, ticket.pool.queue
        ticket.pool.drain.record(request.prompt_tokens, now_s)
        if queue.length:
            queue.note_dispatch(ticket, now_s)
        if ticket.lane is not None:
            answer_tokens = self._answers.expected(request.class_name, request.max_tokens)
            ticket.work_tokens = _OUTPUT_WEIGHT * (answer_tokens or request.max_tokens)
            self._dequeue(ticket, request.prompt_tokens + ticket.work_tokens)
        backend.admit(ticket, now_s)
        self._move(ticket, PREFILLING)
        if not request.streams:
            ticket.prefilled_s = now_s + backend.ledger.prefill_tokens / backend.rates.tokens_per_s
        if ticket.watched and (ticket.armed_s == math.inf or not request.streams):
            self._arm(ticket)
        return Dispatch(request.id, backend.index, record_of(ticket, now_s, self.rules.length_buckets))

    def _make_room(self, newcomer: Ticket, now_s: float) -> list[Decision]:
        victim = newcomer.pool.displaced_by(newcomer)
        if victim is None:
            return []
        victim.bind(Constraint.QUEUE, *newcomer.pool.fill(RELEGATED))
        shed = victim.request.priority > newcomer.request.priority
        return [self._end(victim, Reason.SHED if shed else Reason.QUEUE_FULL, now_s)]

    def _end(self, ticket: Ticket, reason: Reason, now_s: float) -> Decision:
        request = ticket.request
        if ticket.state in _IN_FLIGHT:
            if ticket.state is PREFILLING:
                backend_of(ticket).stop(ticket)
            self._move(ticket, CANCELLING)
            return Abort(request.id, reason, self._pushback_of(ticket, reason, now_s))
        self._dequeue(ticket)
        del self._tickets[request.id]
        self._move(ticket, DONE)
        return self._refusal(ticket, reason, now_s)

    def _dequeue(self, ticket: Ticket, work_tokens: float = 0.0) -> None:
        if ticket.lane is None:
            return
        pool = ticket.pool
        pool.queue.remove(ticket, work_tokens)
        self._waiting -= 1
        if not pool.queue.length:
            pool.drain.pause()

    def _refusal(self, ticket: Ticket, reason: Reason, now_s: float) -> Refuse:
        request = ticket.request
        record = record_of(ticket, now_s, self.rules.length_buckets, reason)
        return Refuse(request.id, reason, self._pushback_of(ticket, reason, now_s), record)

    def _pushback_of(self, ticket: Ticket, reason: Reason, now_s: float) -> int | None:
        request = ticket.request
        return self.pushback_ms(reason, request.priority, request.prompt_tokens, now_s, ticket.pool)

    def _end_prefill(self, ticket: Ticket) -> None:
        backend_of(ticket).end_prefill(ticket)
        self._move(ticket, DECODING)

    def _settle_account(self, ticket: Ticket) -> None:
        """Correct what a tenant was charged by what its answer came to."""
        request = ticket.request
        self._answers.note(request.class_name, ticket.tokens)
        if ticket.work_tokens:
            ticket.pool.queue.charge(ticket, _OUTPUT_WEIGHT * ticket.tokens - ticket.work_tokens)

    def _pool_for(self, request: Request) -> Pool:
        """Return the pool of a prompt's length, or the next one that has an engine, for longer ones."""
        if len(self.pools) == 1:
            return self.pools[0]
        own = bisect_right(self._starts, request.prompt_tokens) - 1
        return next((pool for pool in self.pools[own:] if pool.alive), self.pools[own])

    def _rehome(self, ticket: Ticket, now_s: float) -> list[Decision]:
        pool = self._pool_for(ticket.request)
        if not pool.alive:
            ticket.bind(Constraint.SERVER)
            return [self._end(ticket, Reason.NO_BACKEND, now_s)]
        self._dequeue(ticket)
        ticket.pool, ticket.kv_need = pool, pool.backends[0].ledger.kv_need(ticket.request)
        self._enqueue(ticket, now_s)
        self._arm(ticket)
        return []

    def _move(self, ticket: Ticket, state: State) -> None:
        counts = self._states[ticket.request.class_name]
        counts[ticket.state] -= 1
        counts[state] += 1
        ticket.state = state
