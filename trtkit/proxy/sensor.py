"""Triton's metrics of the engine, polled for what the proxy cannot count itself."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from trtkit.proxy.admission import EngineReport

_PERIOD_S = 0.2
_TIMEOUT_S = 1.0
_MOST_BYTES = 4 << 20
_GAUGE = re.compile(
    rb"^nv_trt_llm_kv_cache_block_metrics"
    rb'\{[^}]*kv_cache_block_type="(used|free|max|tokens_per)"[^}]*\}\s+(\S+)',
    re.MULTILINE,
)
_REQUESTS = re.compile(
    rb'^nv_trt_llm_request_metrics\{[^}]*request_type="(active|waiting|max)"[^}]*\}\s+(\S+)', re.MULTILINE
)
log = logging.getLogger(__name__)


def read_report(text: bytes) -> EngineReport | None:
    """Return what a page of metrics says of the engine; None if a gauge is absent, doubled or no number.

    An engine may say nothing of its requests at all.
    """
    found = _GAUGE.findall(text), _REQUESTS.findall(text)
    try:
        pool, requests = ({name: float(value) for name, value in each} for each in found)
    except ValueError:
        return None
    if len(pool) != 4 or any(
        len(each) != len(read) for each, read in zip(found, (pool, requests), strict=True)
    ):
        return None
    if (b"active" in requests) != (b"waiting" in requests):
        return None
    return EngineReport(
        *(pool[b"used"], pool[b"free"], pool[b"max"], pool[b"tokens_per"]),
        active=requests.get(b"active"),
        waiting=requests.get(b"waiting"),
        most_requests=requests.get(b"max"),
    )


class Sensor:
    """Polls one address and hands over each report, or None where there was none."""

    def __init__(self, address: str, on_report: Callable[[EngineReport | None], None]) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._on_report = on_report

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self._on_report(await self._poll())
            await asyncio.sleep(_PERIOD_S)

    async def _poll(self) -> EngineReport | None:
        try:
            return read_report(await asyncio.wait_for(self._fetch(), _TIMEOUT_S))
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            log.debug("no metrics from the engine: %r", error)
            return None

    async def _fetch(self) -> bytes:
        reader, writer = await asyncio.open_connection(self._host.strip("[]"), self._port)
        try:
            writer.write(f"GET /metrics HTTP/1.0\r\nHost: {self._host}\r\n\r\n".encode())
            return await _read_all(reader)
        finally:
            writer.close()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    parts, size = [], 0
    while part := await reader.read(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise ValueError("more than 4 MiB of metrics")
    return b"".join(parts)
