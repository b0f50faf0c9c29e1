"""What an engine says of its KV pool, and how far it is believed: it may take room away, never give any."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

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
    """The gauges of ``nv_trt_llm_kv_cache_block_metrics``, in blocks; the engine's own ``fraction`` is not used."""

    used_blocks: float
    free_blocks: float
    max_blocks: float
    tokens_per_block: float

    @property
    def plausible(self) -> bool:
        """Whether used and free make up the pool."""
        numbers = (self.used_blocks, self.free_blocks, self.max_blocks, self.tokens_per_block)
        if not all(math.isfinite(number) and number >= 0 for number in numbers) or not self.tokens_per_block:
            return False
        return self.max_blocks > 0 and abs(self.used_blocks + self.free_blocks - self.max_blocks) <= 1


class Signal:
    """Compares an engine's reports with the own ledger, slowly."""

    def __init__(self) -> None:
        self.suspicion = Suspicion.NONE
        self._foreign_tokens = 0.0
        self._last: EngineReport | None = None
        self._changed_s = -math.inf
        self._served_then = 0

    def foreign_kv_tokens(
        self, report: EngineReport | None, now_s: float, *, own_tokens: int, served: int, most_tokens: int
    ) -> int:
        """Return the KV that others hold, by a smoothed difference; a report that is not believed changes nothing.

        ``served`` counts the first tokens so far, so that an idle engine is not taken for a frozen one.
        """
        self.suspicion = self._suspect(report, now_s, served)
        if report is not None and self.suspicion is Suspicion.NONE:
            excess = max(0.0, report.used_blocks * report.tokens_per_block - own_tokens)
            self._foreign_tokens += _WEIGHT * (min(excess, most_tokens) - self._foreign_tokens)
        return int(self._foreign_tokens)

    def _suspect(self, report: EngineReport | None, now_s: float, served: int) -> Suspicion:
        if report is None:
            return Suspicion.MISSING
        if not report.plausible:
            return Suspicion.ABSURD
        if report != self._last:
            self._last, self._changed_s, self._served_then = report, now_s, served
        elif now_s - self._changed_s >= _FROZEN_S and served > self._served_then:
            return Suspicion.FROZEN if report.used_blocks else Suspicion.ZERO
        return Suspicion.NONE
