"""The servers behind the proxy: which of them are up, and what each of them is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from trtkit.proxy.admission import Reason
from trtkit.proxy.config import ProxyConfig
from trtkit.proxy.ending import Refusal
from trtkit.proxy.gate import Gate
from trtkit.proxy.health import Health, Watch
from trtkit.proxy.metrics import MODELS
from trtkit.proxy.sensor import Sensor
from trtkit.proxy.upstream import Upstream
from trtkit.proxy.wire.schema import ModelSchema

OnHealth = Callable[[int, Health], None]
"""Takes the number of a server that goes up or down."""


class _Unreachable(Exception):  # noqa: N818 - another server is asked
    """A server did not tell."""


class Fleet:
    """Triton servers by the numbers of admission's engines; all have the same models."""

    def __init__(self, config: ProxyConfig, gate: Gate, on_health: OnHealth) -> None:
        endpoints = config.endpoints
        self.upstreams = [Upstream(endpoint.grpc) for endpoint in endpoints]
        self._gate = gate
        self._on_health = on_health
        self._watches = [
            Watch(
                *(upstream, partial(self._turn, number)),
                period_s=config.probe_period_s,
                timeout_s=config.probe_timeout_s,
            )
            for number, upstream in enumerate(self.upstreams)
        ]
        self._sensors = [
            Sensor(endpoint.metrics, partial(gate.observe, backend=number))
            for number, endpoint in enumerate(endpoints)
            if endpoint.metrics is not None
        ]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def first(self) -> Upstream:
        """The first server that is up: the one that what is passed through goes to, so that it stays at one place."""
        return self._up()[0]

    def start(self) -> None:
        """Watch the servers from now on."""
        jobs: list[Watch | Sensor] = [*self._watches, *self._sensors]
        self._tasks = [asyncio.create_task(job.run()) for job in jobs]

    async def stop(self) -> None:
        """Let go of all servers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstream in self.upstreams:
            await upstream.close()

    def suspect(self, upstream: Upstream) -> None:
        """Ask a server soon whether it is ready."""
        upstream.forget_schemas()
        self._watches[self.upstreams.index(upstream)].suspect()

    async def reach(self, upstream: Upstream) -> bool:
        """Tell whether a server can be reached; nothing more is sent to one that cannot, until it answers again."""
        reached = await upstream.reach()
        if not reached:
            watch = self._watches[self.upstreams.index(upstream)]
            watch.note(Health.UNREACHABLE)
            watch.suspect()
        return reached

    async def ready(self) -> bool:
        """Tell whether one of the servers is ready; all are asked, the first good answer counts."""
        answers = [asyncio.ensure_future(watch.ask()) for watch in self._watches]
        try:
            for answer in asyncio.as_completed(answers):
                if await answer is Health.READY:
                    return True
            return False
        finally:
            for each in answers:
                each.cancel()

    async def schema(self, model: str) -> ModelSchema:
        """Return what a model declares, at the first server that tells.

        Raises:
            Refusal: No server can be reached, or it does not know the model.
        """
        if model in MODELS and not any(watch.health.up for watch in self._watches):
            raise Refusal(Reason.NO_BACKEND)  # now, and not after a server that is stuck was asked in vain
        *others, last = self._up()
        for upstream in others:
            with contextlib.suppress(_Unreachable):
                return await self._schema_at(upstream, model)
        return await last.schema(model)

    async def admits(self, model: str) -> bool:
        """Tell whether requests to a model go through admission; where nobody tells, they must not get round it."""
        if model in MODELS:
            return True
        try:
            return (await self.schema(model)).dialect is not None
        except Refusal as refusal:
            return refusal.ending.reason is Reason.NO_BACKEND

    async def warm(self) -> None:
        """Ask for the schemas before the first request waits for them."""
        await asyncio.gather(*(upstream.warm() for upstream in self.upstreams))

    def forget_schemas(self) -> None:
        """Ask again: models were reloaded."""
        for upstream in self.upstreams:
            upstream.forget_schemas()

    async def _schema_at(self, upstream: Upstream, model: str) -> ModelSchema:
        try:
            return await upstream.schema(model)
        except Refusal as refusal:
            if refusal.ending.reason is not Reason.NO_BACKEND:
                raise
            self.suspect(upstream)
            raise _Unreachable from refusal

    def _up(self) -> Sequence[Upstream]:
        """Return the servers that are up, or all where none is."""
        up = [each for each, watch in zip(self.upstreams, self._watches, strict=True) if watch.health.up]
        return up or self.upstreams

    def _turn(self, number: int, health: Health) -> None:
        self.upstreams[number].forget_schemas()
        self._on_health(number, health)
        if health.up:
            self._gate.readmit(number)
        else:
            self._gate.eject(number)
