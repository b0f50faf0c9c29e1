"""Whether one server may be sent requests: asked regularly, ejected when it fails, readmitted when it answers."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.proxy.upstream import Upstream

_BACK_OFF_S = (0.1, 2.0)
"""Until a server that failed is asked again: doubling from the first to the second."""
log = logging.getLogger(__name__)


class Health(str, enum.Enum):
    """What a server said when it was asked."""

    READY = "ready"
    """With all its models."""
    ALIVE = "alive"
    """It is not ready as a whole but its engine is, as while another model loads; or it answers and does not tell."""
    UNREADY = "unready"
    """It answered that it is not ready, nor is its engine."""
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    """It took the question and said nothing, to this or to anything else: stuck."""

    @property
    def up(self) -> bool:
        """Whether requests may be sent to it."""
        return self in (Health.READY, Health.ALIVE)


OnHealth = Callable[[Health], None]


class Watch:
    """Keeps one server's health; ``on_health`` is called when it goes up or down.

    A server counts as ready until it was asked: nothing is refused because a proxy has just started.
    """

    def __init__(self, upstream: Upstream, on_health: OnHealth, *, period_s: float, timeout_s: float) -> None:
        self.health = Health.READY
        self._upstream = upstream
        self._on_health = on_health
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._back_off_s = _BACK_OFF_S[0]
        self._wake = asyncio.Event()
        self._asking: asyncio.Task[Health] | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask()
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._pause_s())

    async def ask(self) -> Health:
        """Ask the server now; who asks meanwhile gets the same answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._upstream.ask_health(self._timeout_s))
            self._asking.add_done_callback(self._note_answer)
        return await asyncio.shield(self._asking)

    def suspect(self) -> None:
        """Ask soon: something went wrong there."""
        self._wake.set()

    def note(self, health: Health) -> None:
        """Take in what was found out about the server."""
        was, self.health = self.health, health
        if health.up == was.up:
            return
        self._back_off_s = _BACK_OFF_S[0]
        log.warning("upstream %s is %s", self._upstream.target, health.value)
        self._on_health(health)

    def _note_answer(self, done: asyncio.Task[Health]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.note(done.result())

    def _pause_s(self) -> float:
        if self.health.up:
            return self._period_s
        pause_s = self._back_off_s
        self._back_off_s = min(2 * pause_s, _BACK_OFF_S[1])
        return pause_s
