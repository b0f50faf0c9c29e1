"""How often requests may come so that they wait no longer than was promised: queueing formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass

_HALVINGS = 40


@dataclass(frozen=True)
class Waiting:
    """What requests of one kind wait for that come at random (Poisson): a slot, then the prompts before their own."""

    prompt_ms: float
    """From one prompt's turn to the next one's."""
    slots: int
    held_ms: float
    """How long a request has its slot while all are taken."""

    def late(self, per_ms: float, patience_ms: float) -> float:
        """Return the share of requests that wait for longer than a time; an estimate, and rather too high.

        Prompts are taken one after another, M/D/1: a share of rho waits, and of these exp(-2 (1 - rho) t / prompt) for
        longer than t (Kingman 1961). Slots are M/M/c: a share of rho^(sqrt(2 (c + 1)) - 1) waits (Sakasegawa 1977), of
        these exp(-c (1 - rho) t / held) for longer. Prompts of 100 ms, 5 in a second: half of the requests wait, and
        0.5 exp(-2 x 0.5 x 3) = 2.5 % for longer than 300 ms.
        """
        prompts, slots = per_ms * self.prompt_ms, per_ms * self.held_ms / self.slots
        if max(prompts, slots) >= 1:
            return 1.0
        for_prompts = prompts * math.exp(-2 * (1 - prompts) * patience_ms / self.prompt_ms)
        must = math.pow(slots, math.sqrt(2 * (self.slots + 1)) - 1)
        for_slots = must * math.exp(-self.slots * (1 - slots) * patience_ms / self.held_ms)
        return min(1.0, for_prompts + for_slots)

    def most_per_ms(self, patience_ms: float, share_late: float) -> float:
        """Return the largest rate at which no more than a share of the requests waits for longer than a time."""
        if patience_ms < 0:
            return 0.0
        low, high = 0.0, min(1 / self.prompt_ms, self.slots / self.held_ms)
        if math.isinf(patience_ms):
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.late(middle, patience_ms) <= share_late else (low, middle)
        return low
