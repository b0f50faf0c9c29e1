"""The proxy's log: one JSON object a line, written by a thread of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import queue
import sys
from collections.abc import Iterator
from datetime import datetime, timezone

_ROOM = 10_000
"""Lines that may wait for a reader of stderr that is slow; what is above is dropped, since nobody may wait for it."""


class _Lines(logging.Formatter):
    """Writes a record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps({**line, **getattr(record, "decision", {})})


class _Queued(logging.handlers.QueueHandler):
    """Hands records over as they are."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - the queue is full
        return


@contextlib.contextmanager
def open_journal(level: str) -> Iterator[None]:
    """Log what the proxy does, from this level on, to stderr."""
    log = logging.getLogger("trtkit.proxy")
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(_ROOM)
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(_Lines())
    handler = _Queued(waiting)
    listener = logging.handlers.QueueListener(waiting, writer)
    log.addHandler(handler)
    log.setLevel(level.upper())
    listener.start()
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
        listener.stop()
