"""The records of what was decided and what became of it: counted, logged, and kept for a while for who asks."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from trtkit.proxy.admission import Reason, Record
from trtkit.proxy.slo import Timeline

_KEPT = 10_000
log = logging.getLogger(__name__)

OnRecord = Callable[[Record], None]


class DecisionLog:
    """The last ten thousand decisions, by the proxy's id and by the client's."""

    def __init__(self, on_record: OnRecord) -> None:
        self._on_record = on_record
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._names: dict[str, str] = {}
        """The proxy's id by the client's; the latest of several wins."""
        self._clients: dict[str, str] = {}

    def note(self, record: Record, client_id: str) -> None:
        """Take a decision in, and count it."""
        self._on_record(record)
        self._records[record.id] = record
        if client_id:
            self._names[client_id] = record.id
            self._clients[record.id] = client_id
        if len(self._records) > _KEPT:
            self._forget(self._records.popitem(last=False)[0])

    def revise(self, record: Record) -> None:
        """Put a later decision about a request in the place of the first one, which was counted."""
        if record.id in self._records:
            self._records[record.id] = record

    def close(self, request_id: str, reason: Reason, timeline: Timeline) -> None:
        """Complete a record by how its request ended, and log it; what ended well only for debugging."""
        record = self._records.get(request_id)
        if record is None:  # ten thousand others came meanwhile
            return
        total_s = math.nan if timeline.total_s is None else timeline.total_s
        record = record._replace(reason=reason, total_s=total_s, tokens=timeline.tokens)
        self._records[request_id] = record
        level = logging.DEBUG if reason is Reason.OK else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "request", extra={"decision": as_json(record)})

    def find(self, request_id: str) -> Record | None:
        """Return the record of a request by either of its ids."""
        return self._records.get(self._names.get(request_id, request_id))

    def _forget(self, request_id: str) -> None:
        client_id = self._clients.pop(request_id, None)
        if client_id is not None and self._names.get(client_id) == request_id:
            del self._names[client_id]


def as_json(record: Record) -> Mapping[str, Any]:
    """Return a record as JSON: enums by their values, what is not known as null."""
    values = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record._asdict().items()
    }
    state = "waiting" if record.backend is None else "running"
    return {**values, "outcome": record.reason.outcome if record.reason else state}
