"""What is in flight at one engine, in its three scarce things."""

from __future__ import annotations

from trtkit.plan.types import Zones
from trtkit.proxy.admission.record import Constraint
from trtkit.proxy.admission.request import Request, Ticket

PREFILL, KV, DECODE = Constraint.PREFILL, Constraint.KV, Constraint.DECODE
"""The zones' constraints, at hand as :data:`~trtkit.proxy.admission.request.QUEUED` is."""


class Ledger:
    """Counts un-prefilled prompt tokens, reserved KV tokens and running requests against the zones."""

    def __init__(self, zones: Zones, tokens_per_block: int) -> None:
        self.zones = zones
        self.prefill_limit = float(zones.prefill_tokens)
        self.kv_limit = float(zones.kv_tokens)
        self.slots_limit = float(zones.decode_slots)
        self.most_slots = float(zones.decode_slots)
        """The zone's, or fewer where the engine says that it has fewer."""
        self.prefill_tokens = 0
        self.spared_tokens = 0
        """What a prompt has above its band's share of the zone, and went with since nothing else was in flight.

        It is not counted, so that more urgent bands keep the rest of the zone: a low band's prompt of 32 768 tokens
        counts 0.6 * 3072 = 1843 of 3072.
        """
        self.kv_tokens = 0
        self.foreign_kv_tokens = 0
        """KV that the engine reports beyond what was handed out here: other clients of the same server."""
        self.foreign_slots = 0
        """Requests that the engine reports beyond those that were sent from here."""
        self.decode_slots = 0
        self._tokens_per_block = tokens_per_block

    def kv_need(self, request: Request) -> int:
        """Return the request's reservation: prompt + max_tokens in whole blocks (33 tokens in blocks of 32: 64).

        Of several beams each answer has its blocks: 32 prompt tokens and 4 x 64 are 288.
        """
        need = self.zones.kv_need(request.prompt_tokens + request.max_tokens, self._tokens_per_block)
        if request.beams > 1:
            need += (request.beams - 1) * self.zones.kv_need(request.max_tokens, self._tokens_per_block)
        return need

    def narrow(self, kv_tokens: float, slots: float) -> None:
        """Hand out no more than an engine says that it has in all, whatever the contract says."""
        self.kv_limit = min(float(self.zones.kv_tokens), kv_tokens)
        self.most_slots = min(float(self.zones.decode_slots), slots)

    def could_fit(self, ticket: Ticket) -> bool:
        """Tell whether the request fits when nothing else is in flight."""
        return ticket.kv_need <= self.zones.kv_tokens and self.zones.decode_slots >= 1

    def blocker(self, ticket: Ticket, share: float) -> Constraint | None:
        """Return what keeps the request from going now, if anything; whatever is quite empty takes anybody.

        ``share`` is the part of each zone that the request's band may fill.
        """
        prefill_tokens, kv_tokens = self.prefill_tokens - self.spared_tokens, self.kv_tokens
        if prefill_tokens and prefill_tokens + ticket.request.prompt_tokens > share * self.prefill_limit:
            return PREFILL
        if kv_tokens and kv_tokens + self.foreign_kv_tokens + ticket.kv_need > share * self.kv_limit:
            return KV
        slots = self.decode_slots
        if slots and slots + self.foreign_slots + 1 > share * self.slots_limit + 1e-9:
            return DECODE
        return None

    def bind(self, ticket: Ticket, constraint: Constraint, share: float) -> None:
        """Note with a request what a constraint would have come to with it, and what it may come to."""
        if constraint is PREFILL:
            used = self.prefill_tokens - self.spared_tokens
            ticket.bind(constraint, used + ticket.request.prompt_tokens, share * self.prefill_limit)
        elif constraint is KV:
            used = self.kv_tokens + self.foreign_kv_tokens
            ticket.bind(constraint, used + ticket.kv_need, share * self.kv_limit)
        else:
            used = self.decode_slots + self.foreign_slots
            ticket.bind(constraint, used + 1, share * self.slots_limit)

    def admit(self, ticket: Ticket) -> None:
        """Take the request's share of every zone."""
        ticket.held_prefill_tokens = ticket.request.prompt_tokens
        ticket.held_kv_tokens = ticket.kv_need
        self.prefill_tokens += ticket.held_prefill_tokens
        # Whole tokens: what is left of floats when all has been given back would not be 0.
        ticket.spared_tokens = max(0, ticket.held_prefill_tokens - int(ticket.share * self.prefill_limit))
        self.spared_tokens += ticket.spared_tokens
        self.kv_tokens += ticket.held_kv_tokens
        self.decode_slots += 1

    def end_prefill(self, ticket: Ticket) -> None:
        """Give back the prefill share; the rest stays taken."""
        self.prefill_tokens -= ticket.held_prefill_tokens
        self.spared_tokens -= ticket.spared_tokens
        ticket.held_prefill_tokens = ticket.spared_tokens = 0

    def release(self, ticket: Ticket) -> None:
        """Give back all that the request still holds."""
        self.end_prefill(ticket)
        self.kv_tokens -= ticket.held_kv_tokens
        ticket.held_kv_tokens = 0
        self.decode_slots -= 1
