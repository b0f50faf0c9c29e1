"""TCP ports on this machine: choose free ones, name who holds a taken one."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

from trtkit.errors import InputError, StartError

_LISTEN = "0A"


def choose_ports(names: Sequence[str], wanted: Sequence[int], *, host: str) -> list[int]:
    """Return ``wanted`` with every 0 replaced by a free port. Raises InputError, StartError for a port in use."""
    _refuse_twins(dict(zip(names, wanted, strict=True)))
    with ExitStack() as held:  # all at once, or the same port could be chosen twice
        return [_probe(held, name, port, host) for name, port in zip(names, wanted, strict=True)]


def _refuse_twins(ports: Mapping[str, int]) -> None:
    for (one, port), (other, other_port) in combinations(ports.items(), 2):
        if port == other_port != 0:
            raise InputError(
                f"the {one} port and the {other} port are both {port}",
                hint="give each its own port (0 chooses a free one)",
            )


def _probe(held: ExitStack, name: str, port: int, host: str) -> int:
    probe = held.enter_context(socket.socket())
    # tritonserver binds so too: a port in TIME_WAIT is not in use.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((host, port))
        probe.listen()  # with SO_REUSEADDR only listening tells two servers apart
    except OSError as error:
        holder = _holder(port)
        raise StartError(
            f"the {name} port {port} cannot be used: {error.strerror}{f', {holder} listens there' if holder else ''}",
            hint="stop that process, or give another port (0 chooses a free one)",
        ) from error
    return int(probe.getsockname()[1])


def _holder(port: int) -> str:
    """Return the process that listens on ``port``, empty when /proc does not tell."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listeners(Path("/proc/net", table), port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return next((_title(path) for path in Path("/proc").glob("[0-9]*") if _has_open(path, wanted)), "")


def _has_open(process: Path, files: set[str]) -> bool:
    try:
        return any(str(descriptor.readlink()) in files for descriptor in (process / "fd").iterdir())
    except OSError:
        return False  # gone, or not ours to see


def _title(process: Path) -> str:
    return f"{(process / 'comm').read_text().strip()} (pid {process.name})"


def _listeners(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    # Columns: slot, local address:port in hexadecimal, remote, state, ..., inode at 9.
    return [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]
