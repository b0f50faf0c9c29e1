"""What one class of requests was promised, and when it ends for certain."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trtkit.contract.scalars import Milliseconds, Tokens
from trtkit.contract.scheduling import OnInfeasible
from trtkit.contract.section import Section

STALL_MS = 5_000.0
STALL_TPOTS = 50


class Timeouts(Section):
    """Hard ends of a request. Each is its own clock; when one runs out the request is cancelled upstream."""

    queue_ms: Milliseconds | None = None
    """Longest wait in the proxy's queue; left out, the TTFT promise where ``on_infeasible`` is ``reject``."""
    first_token_ms: Milliseconds | None = None
    """From arrival to first token."""
    inter_token_ms: Milliseconds | None = None
    """Between two tokens, restarting at each; left out, 50 times the TPOT promise and at least 5 s: a stall."""
    total_ms: Milliseconds | None = None
    """From arrival to last token; left out, the deadline promise."""


class ServiceClass(Section):
    """What one class of requests was promised, and what it may ask for."""

    priority: Annotated[int, Field(ge=1, le=1000, examples=[1])]
    """1 is the most urgent, as in Triton. Requests may name it by Triton's own ``priority`` parameter."""
    ttft_ms: Milliseconds | None = None
    """Promise: time to first token, from arrival at the proxy."""
    tpot_ms: Milliseconds | None = None
    """Promise: time per output token after the first, (last - first) / (n - 1)."""
    deadline_ms: Milliseconds | None = None
    """Promise: time to last token, from arrival at the proxy."""
    max_prompt_tokens: Tokens | None = None
    """Longest prompt of this class; left out, the engine's."""
    max_output_tokens: Tokens | None = None
    """Cap of ``max_tokens``; a larger value is clipped and the response says so."""
    default_output_tokens: Tokens = 128
    """``max_tokens`` of a request that names none."""
    sheddable: bool = False
    """May be dropped from the queue to make room for a more urgent class, or stopped before its first token."""
    on_infeasible: Annotated[OnInfeasible, Field(strict=False)] = OnInfeasible.REJECT
    """What becomes of a request whose first token cannot come in time."""
    timeouts: Timeouts = Timeouts()

    @model_validator(mode="after")
    def _no_end_cuts_a_promise(self) -> ServiceClass:
        for end, promises in (
            ("first_token_ms", ("ttft_ms",)),
            ("inter_token_ms", ("tpot_ms",)),
            ("total_ms", ("ttft_ms", "deadline_ms")),
        ):
            limit_ms = getattr(self.timeouts, end)
            for promise in promises:
                promised_ms = getattr(self, promise)
                if None not in (limit_ms, promised_ms) and limit_ms < promised_ms:
                    raise ValueError(
                        f"timeouts.{end} {limit_ms:g} ends a request before its {promise} {promised_ms:g}"
                    )
        return self

    @property
    def has_slo(self) -> bool:
        """Whether anything was promised: a class without promise counts nowhere in attainment."""
        return any(value is not None for value in (self.ttft_ms, self.tpot_ms, self.deadline_ms))

    @property
    def queue_limit_ms(self) -> float | None:
        """Effective limit of the wait in the queue; a class that is served late as well has none of itself."""
        if self.timeouts.queue_ms is not None:
            return self.timeouts.queue_ms
        return self.ttft_ms if self.on_infeasible is OnInfeasible.REJECT else None

    @property
    def inter_token_limit_ms(self) -> float:
        """Effective limit between two tokens."""
        if self.timeouts.inter_token_ms is not None:
            return self.timeouts.inter_token_ms
        return max(STALL_MS, STALL_TPOTS * (self.tpot_ms or 0.0))

    @property
    def total_limit_ms(self) -> float | None:
        """Effective limit from arrival to last token."""
        return self.timeouts.total_ms if self.timeouts.total_ms is not None else self.deadline_ms
