"""What is in flight at the engine, in its three scarce things."""

from __future__ import annotations

from dataclasses import dataclass

from trtkit.plan.types import Zones
from trtkit.proxy.admission.request import Request


@dataclass(slots=True)
class _Hold:
    prefill_tokens: int
    kv_tokens: int


class Ledger:
    """Counts un-prefilled prompt tokens, reserved KV tokens and running requests against the zones."""

    def __init__(self, zones: Zones, tokens_per_block: int) -> None:
        self.zones = zones
        self.prefill_tokens = 0
        self.kv_tokens = 0
        self._tokens_per_block = tokens_per_block
        self._holds: dict[str, _Hold] = {}

    @property
    def decode_slots(self) -> int:
        """Requests in flight."""
        return len(self._holds)

    def kv_need(self, request: Request) -> int:
        """Return the request's reservation: prompt + max_tokens in whole blocks (33 tokens in blocks of 32: 64)."""
        blocks = -(-(request.prompt_tokens + request.max_tokens) // self._tokens_per_block)
        return blocks * self._tokens_per_block

    def could_fit(self, request: Request) -> bool:
        """Tell whether the request fits when nothing else is in flight."""
        return self.kv_need(request) <= self.zones.kv_tokens and self.zones.decode_slots >= 1

    def fits(self, request: Request) -> bool:
        """Tell whether the request may go now; any prompt may start when no other is being prefilled."""
        prefill_tokens = self.prefill_tokens + request.prompt_tokens
        return (
            (self.prefill_tokens == 0 or prefill_tokens <= self.zones.prefill_tokens)
            and self.kv_tokens + self.kv_need(request) <= self.zones.kv_tokens
            and self.decode_slots < self.zones.decode_slots
        )

    def admit(self, request: Request) -> None:
        """Take the request's share of every zone."""
        hold = _Hold(request.prompt_tokens, self.kv_need(request))
        self._holds[request.id] = hold
        self.prefill_tokens += hold.prefill_tokens
        self.kv_tokens += hold.kv_tokens

    def end_prefill(self, request_id: str) -> None:
        """Give back the prefill share; the rest stays taken."""
        hold = self._holds[request_id]
        self.prefill_tokens -= hold.prefill_tokens
        hold.prefill_tokens = 0

    def release(self, request_id: str) -> None:
        """Give back all that the request still holds."""
        hold = self._holds.pop(request_id)
        self.prefill_tokens -= hold.prefill_tokens
        self.kv_tokens -= hold.kv_tokens
