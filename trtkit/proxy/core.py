"""What all requests of one proxy share."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from trtkit.proxy.admission import Admission, Record
from trtkit.proxy.config import ProxyConfig
from trtkit.proxy.decisions import DecisionLog, as_json
from trtkit.proxy.fleet import Fleet
from trtkit.proxy.gate import Gate
from trtkit.proxy.metrics import Metrics
from trtkit.proxy.wire.prompt import PromptCounter

if TYPE_CHECKING:
    from trtkit.proxy.exchange import Exchange
    from trtkit.proxy.stream import ClientStream


class Core:
    """The proxy's parts, and the requests that are alive in it."""

    def __init__(self, config: ProxyConfig, registry: CollectorRegistry) -> None:
        base, *longer = (pool.spec for pool in config.pools)
        admission = Admission(
            *(config.rules, base.zones, base.tokens_per_block), backends=base.backends, longer=longer
        )
        self.config = config
        self.clock = time.monotonic
        self.gate = Gate(admission, self.clock)
        self.counter = PromptCounter.load(config.tokenizer)
        self.metrics = Metrics(config.classes, registry)
        places = [(pool.name, each.grpc) for pool in config.pools for each in pool.endpoints]
        self.metrics.watch(admission, places)
        self.fleet = Fleet(config, self.gate, self.metrics.turned)
        self.decisions = DecisionLog(self.metrics.decided)
        self.draining = False
        self.live: set[Exchange] = set()
        self.streams: set[ClientStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._prefix = secrets.token_hex(4)
        self._serial = itertools.count()

    def new_id(self) -> str:
        """Return an id that no other request at this Triton has, whoever sent it."""
        return f"tk-{self._prefix}-{next(self._serial)}"

    def explain(self, request_id: str) -> Mapping[str, Any] | None:
        """Return the record of a recent decision, or what binds a request that waits for one."""
        record = self._waiting(request_id) or self.decisions.find(request_id)
        return None if record is None else as_json(record)

    def _waiting(self, request_id: str) -> Record | None:
        ids = [each.upstream_id for each in self.live if request_id in (each.upstream_id, each.client_id)]
        found = (self.gate.admission.waiting(each, self.clock()) for each in ids)
        return next((record for record in found if record), None)

    async def ready(self) -> bool:
        """Tell whether requests can be served: a Triton is ready and the proxy stays."""
        return not self.draining and await self.fleet.ready()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something to its end even if the client's call is over before."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self, timeout_s: float) -> None:
        """Wait until everything spawned has ended; what has not by then is cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        stragglers = list(self._tasks)
        for task in stragglers:
            task.cancel()
        await asyncio.gather(*stragglers, return_exceptions=True)
