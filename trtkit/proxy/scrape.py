"""The HTTP side: /metrics for Prometheus, /livez and /readyz for orchestrators, /decisions/ID for people."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

_REQUEST_S = 5.0


_JSON = "application/json"
_DECISIONS = b"/decisions/"

Explain = Callable[[str], Mapping[str, Any] | None]


class ScrapePort:
    """A small HTTP/1.1 server, one request per connection."""

    def __init__(
        self, registry: CollectorRegistry, ready: Callable[[], Awaitable[bool]], explain: Explain
    ) -> None:
        self._registry = registry
        self._ready = ready
        self._explain = explain
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Start to listen; return the port."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop to listen."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_S)
            status, kind, body = await self._answer(head.split(maxsplit=2)[1].partition(b"?")[0])
            header = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{header}Connection: close\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()

    async def _answer(self, path: bytes) -> tuple[str, str, bytes]:
        if path == b"/metrics":
            # Rendering thousands of series takes milliseconds, which no stream should feel.
            body = await asyncio.to_thread(render, self._registry)
            return "200 OK", CONTENT_TYPE_PLAIN_0_0_4, body
        if path.startswith(_DECISIONS):
            found = self._explain(unquote_to_bytes(path[len(_DECISIONS) :]).decode(errors="replace"))
            text = json.dumps(found or {"error": "no such request, or too long ago"})
            return "200 OK" if found else "404 Not Found", _JSON, text.encode()
        if path == b"/livez":
            return "200 OK", "text/plain", b"live\n"
        if path == b"/readyz":
            ready = await self._ready()
            return (
                ("200 OK", "text/plain", b"ready\n")
                if ready
                else ("503 Service Unavailable", "text/plain", b"")
            )
        return "404 Not Found", "text/plain", b"/metrics, /livez, /readyz, /decisions/ID\n"


def render(registry: CollectorRegistry) -> bytes:
    """Return a page of metrics, without the gauge of its birth that the client library adds to each counter."""
    return generate_latest(cast("CollectorRegistry", _Unborn(registry)))


class _Unborn:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
