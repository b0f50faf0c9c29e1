"""The Python processes of a tritonserver, one per model instance, as /proc shows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class Stub:
    """One process; ``instance`` is Triton's name of the model instance that it runs."""

    pid: int
    instance: str

    def alive(self) -> bool:
        """Return whether the process runs (a zombie does not)."""
        return _state(self.pid) not in {"", "Z", "X"}


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


def _state(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0
