"""The Python processes of a tritonserver, one per model instance, as /proc shows them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_STUB = "triton_python_backend_stub"
_ANNOUNCED = re.compile(r"python_be\.cc:\d+\] \"TRITONBACKEND_ModelInstanceInitialize: (\S+) \(")
_START_S = 3.0
"""Longer than Triton takes from announcing an instance to starting its process."""


@dataclass(frozen=True)
class Stub:
    """One process; ``instance`` is Triton's name of the model instance that it runs."""

    pid: int
    instance: str

    def alive(self) -> bool:
        """Return whether the process runs."""
        return runs(self.pid)


class Loading:
    """Notices a process that ended while its model was loading: Triton would wait for its answer for ever."""

    def __init__(self) -> None:
        self._missing_since_s: dict[str, float] = {}

    def lost(self, log: str, running: Collection[Stub], now_s: float) -> list[str]:
        """Return the instances that Triton's log has announced and that no process has run for a while."""
        missing = set(_ANNOUNCED.findall(log)) - {stub.instance for stub in running}
        self._missing_since_s = {name: self._missing_since_s.get(name, now_s) for name in missing}
        return sorted(name for name, since_s in self._missing_since_s.items() if now_s - since_s >= _START_S)


def running_stubs(server_pid: int) -> tuple[Stub, ...]:
    """Return the stubs whose parent is ``server_pid``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        pid = int(path.parent.name)
        if arguments[0].endswith(_STUB) and _parent(pid) == server_pid:
            # stub MODEL.PY SHM SIZE SIZE PARENT BACKEND OFFSET INSTANCE DEFAULT
            found.append(Stub(pid, arguments[8] if len(arguments) > 8 else arguments[1]))
    return tuple(sorted(found, key=lambda stub: stub.pid))


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, empty when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name in parentheses may hold spaces


def runs(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return next(iter(_stat(pid)), "") not in {"", "Z", "X"}


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0
