"""What an engine says of its load, and how far it is believed: it may take room away, never give any."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.proxy.admission.ledger import Ledger

_WEIGHT = 0.1
"""Of one report: at five reports a second, a correction is two thirds there after two seconds."""
_FROZEN_S = 3.0
"""Time without any change, while first tokens came, after which reports are taken for frozen."""


class Suspicion(str, enum.Enum):
    """Why a report is not believed."""

    NONE = "none"
    MISSING = "missing"
    ABSURD = "absurd"
    """Numbers that cannot be: labels that have shifted show so."""
    ZERO = "zero"
    """Nothing in use, although requests of this proxy run."""
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Gauges of ``nv_trt_llm_kv_cache_block_metrics``, in blocks, and of ``nv_trt_llm_request_metrics``.

    The engine's own ``fraction`` is not used.
    """

    used_blocks: float
    free_blocks: float
    max_blocks: float
    tokens_per_block: float
    active: float | None = None
    """Requests that the engine holds, those that wait in it included; None where it does not say."""
    waiting: float | None = None
    most_requests: float | None = None
    """Requests that the engine may hold at once."""

    @property
    def plausible(self) -> bool:
        """Whether used and free make up the pool, and no more requests wait than there are."""
        numbers = (self.used_blocks, self.free_blocks, self.max_blocks, self.tokens_per_block)
        counts = (self.active or 0.0, self.waiting or 0.0, self.most_requests or 0.0)
        if not all(math.isfinite(number) and number >= 0 for number in (*numbers, *counts)):
            return False
        if (
            not self.tokens_per_block
            or self.most_requests == 0
            or (self.active is not None and counts[1] > counts[0])
        ):
            return False
        return self.max_blocks > 0 and abs(self.used_blocks + self.free_blocks - self.max_blocks) <= 1


class Signal:
    """Compares an engine's reports with the own ledger, slowly."""

    def __init__(self, proxies: int = 1) -> None:
        self._others = proxies - 1
        """Proxies beside this one, who hold a part of the zones as large as its own."""
        self.suspicion = Suspicion.NONE
        self._foreign_tokens = self._foreign_requests = 0.0
        self._last: tuple[float, float] | None = None
        """Used and free blocks: requests may well be as many for a while, blocks are not while first tokens come."""
        self._changed_s = -math.inf
        self._served_then = 0

    @property
    def foreign_kv_tokens(self) -> int:
        """The KV that others hold."""
        return int(self._foreign_tokens)

    @property
    def foreign_requests(self) -> int:
        """The requests that others have in the engine."""
        return int(max(0.0, self._foreign_requests) + 0.5)

    def believes(self, report: EngineReport | None, now_s: float, *, served: int) -> bool:
        """Tell whether a report is to be believed, and note why not.

        ``served`` counts the first tokens so far, so that an idle engine is not taken for a frozen one.
        """
        self.suspicion = self._suspect(report, now_s, served)
        return self.suspicion is Suspicion.NONE

    def compare(self, report: EngineReport, ledger: Ledger) -> None:
        """Smooth the differences to what is known to be in flight; they count up to half of a zone.

        Own reservations are above what is used, so only KV in excess counts, of that what other proxies do not hold by
        right. Requests are compared both ways: a report
        that lags behind shows some too many as often as some too few, which comes to nothing.
        """
        own_and_others = ledger.kv_tokens + self._others * ledger.zones.kv_tokens
        excess_tokens = max(0.0, report.used_blocks * report.tokens_per_block - own_and_others)
        excess_tokens = min(excess_tokens, ledger.zones.kv_tokens // 2)
        self._foreign_tokens += _WEIGHT * (excess_tokens - self._foreign_tokens)
        if report.active is not None:
            most = ledger.zones.decode_slots // 2
            excess = report.active - ledger.decode_slots
            excess -= min(max(excess, 0.0), self._others * ledger.zones.decode_slots)
            excess = min(max(excess, -most), most)
            self._foreign_requests += _WEIGHT * (excess - self._foreign_requests)

    def _suspect(self, report: EngineReport | None, now_s: float, served: int) -> Suspicion:
        if report is None:
            return Suspicion.MISSING
        if not report.plausible:
            return Suspicion.ABSURD
        pool = (report.used_blocks, report.free_blocks)
        if pool != self._last:
            self._last, self._changed_s, self._served_then = pool, now_s, served
        elif now_s - self._changed_s >= _FROZEN_S and served > self._served_then:
            return Suspicion.FROZEN if report.used_blocks else Suspicion.ZERO
        return Suspicion.NONE
