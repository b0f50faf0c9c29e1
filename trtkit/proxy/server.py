"""The proxy as a process: start, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

import grpc.aio
from prometheus_client import CollectorRegistry

from trtkit.errors import StartError
from trtkit.proxy.admission import Reason
from trtkit.proxy.config import ProxyConfig
from trtkit.proxy.core import Core
from trtkit.proxy.ending import Refusal
from trtkit.proxy.router import Router
from trtkit.proxy.scrape import ScrapePort
from trtkit.proxy.upstream import UNLIMITED_MESSAGES

_SERVER_OPTIONS = (
    *UNLIMITED_MESSAGES,
    # A second proxy on the same port is an error, not a second half of the traffic.
    ("grpc.so_reuseport", 0),
    # Clients may ping as often as they like, with or without calls.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)
_LAST_WORDS_S = 1.0


class Proxy:
    """One proxy in front of one Triton, or of several that have the same models."""

    def __init__(self, config: ProxyConfig, registry: CollectorRegistry | None = None) -> None:
        self.config = config
        self.registry = registry or CollectorRegistry()
        self.grpc_port = 0
        self.metrics_port = 0
        self._core: Core | None = None
        self._server: grpc.aio.Server | None = None
        self._scrape: ScrapePort | None = None

    async def start(self) -> None:
        """Listen on both ports; Triton need not be there yet.

        Raises:
            StartError: A port is taken, or the address is not one of this machine.
            InputError: The tokenizer cannot be loaded.
        """
        core = self._core = Core(self.config, self.registry)
        self._server = grpc.aio.server(options=list(_SERVER_OPTIONS))
        self._server.add_generic_rpc_handlers((Router(core),))
        self._scrape = ScrapePort(self.registry, core.ready, core.explain)
        host, authority = self.config.host, self.config.host
        if ":" in host:
            authority = f"[{host}]"
        try:
            self.grpc_port = self._server.add_insecure_port(f"{authority}:{self.config.grpc_port}")
            self.metrics_port = await self._scrape.open(host, self.config.metrics_port)
        except (RuntimeError, OSError) as error:
            await self._close()
            ports = f"{self.config.grpc_port} and {self.config.metrics_port}"
            raise StartError(
                f"cannot listen on {host}, ports {ports}: {error}",
                hint="choose other ports; 0 takes a free one",
            ) from error
        await self._server.start()
        core.spawn(core.fleet.warm())
        core.fleet.start()

    async def drain(self, grace_s: float | None = None) -> None:
        """Refuse what waits and what comes, let what runs finish for ``grace_s``, then stop."""
        core = self._running_core()
        core.draining = True
        core.gate.drain()
        await core.settle(self.config.drain_grace_s if grace_s is None else grace_s)
        for stream in core.streams:  # kept open by clients that have nothing under way
            stream.finish_with(Refusal(Reason.DRAINING).ending)
        await self._close()

    async def wait(self) -> None:
        """Wait until the proxy has stopped."""
        if self._server is not None:
            await self._server.wait_for_termination()

    def _running_core(self) -> Core:
        if self._core is None:
            raise StartError("the proxy was not started")
        return self._core

    async def _close(self) -> None:
        if self._scrape is not None:
            self._scrape.close()
        if self._server is not None:
            await self._server.stop(_LAST_WORDS_S)
        if self._core is not None:
            await self._core.fleet.stop()


def run(config: ProxyConfig, on_start: Callable[[Proxy], None] | None = None) -> None:
    """Run a proxy until SIGINT or SIGTERM: the first drains, the second stops at once.

    ``on_start`` is called with the proxy once it listens.
    """
    asyncio.run(_run(config, on_start))


async def _run(config: ProxyConfig, on_start: Callable[[Proxy], None] | None) -> None:
    proxy = Proxy(config)
    await proxy.start()
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def note() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note)
    if on_start is not None:
        on_start(proxy)
    await first.wait()
    draining = asyncio.create_task(proxy.drain())
    forcing = asyncio.create_task(second.wait())
    await asyncio.wait({draining, forcing}, return_when=asyncio.FIRST_COMPLETED)
    forcing.cancel()
    if not draining.done():
        await proxy.drain(0)
        draining.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await draining
