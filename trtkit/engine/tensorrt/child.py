"""A compiler as a child process: its log in a file, its last line told as it comes, its whole group ended with us.

However we end: a guard that waits for that ends the group where SIGKILL leaves us no time.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

GRACE_S = 10.0
"""From SIGTERM to SIGKILL: workers hold GPU memory that they free only when they end by themselves."""
POLL_S = 0.1
_VMSTAT = Path("/proc/vmstat")
_TAIL_LINES = 400
_GUARD = f"""
import os, signal, sys, time
sys.stdin.buffer.read()
for number in (signal.SIGTERM, signal.SIGKILL):
    try:
        os.killpg(int(sys.argv[1]), number)
    except OSError:
        break
    time.sleep({GRACE_S})
"""
"""Waits for the end of who started it, and ends a group then: a compiler of hours holds the GPU."""

OnLine = Callable[[str], str]
"""Takes a line of the log; a text in return is the reason to stop at once."""


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    argv: tuple[str, ...]
    code: int
    """Exit code; negative for the number of the signal that killed it."""
    seconds: float
    tail: tuple[str, ...]
    """The last lines of its log."""
    log_file: Path
    oom_kills: int = 0
    """Processes that the kernel killed for want of memory on this machine meanwhile."""
    stopped: str = ""
    """Why it was stopped before its end."""


def run(argv: Sequence[str], *, log_file: Path, cwd: Path, env: Mapping[str, str], on_line: OnLine) -> Ended:
    """Run a command to its end and return how that was; the log gets the command itself and all that it says.

    An exception here, Ctrl-C among them, ends the child and everything that it started.

    Raises:
        OSError: It cannot be started.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    started_s, killed = time.monotonic(), _oom_kills()
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with log_file.open("ab") as log:
        log.write(f"$ {shlex.join(argv)}\n".encode())
        log.flush()
        start = log.tell()
        with _started(argv, cwd, env, log) as process, log_file.open("rb") as said:
            said.seek(start)
            stopped = _follow(process, said, tail, on_line)
            if stopped:
                end_group(process)
            code = process.wait()
    return Ended(
        argv=tuple(argv),
        code=code,
        seconds=time.monotonic() - started_s,
        tail=tuple(tail),
        log_file=log_file,
        oom_kills=_oom_kills() - killed,
        stopped=stopped,
    )


@contextmanager
def _started(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child that leads a process group of its own, which is gone when the block ends."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end_group(process)
        with guard:
            guard.kill()


def end_group(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """End the child and its workers: asked first, then killed. Workers that outlive their leader are killed too."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    # No new process gets the group's number while a member of it lives.
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _follow(process: subprocess.Popen[bytes], said: IO[bytes], tail: deque[str], on_line: OnLine) -> str:
    """Tell each line until the child ends; return why it should end before.

    The log is a file and no pipe: a worker that outlives its leader would keep a pipe open for ever.
    """
    rest, ended = b"", False
    while True:
        ended = ended or process.poll() is not None
        *lines, rest = (rest + said.read()).split(b"\n")
        for raw in [*lines, rest] if ended and rest else lines:
            # Progress bars write many states of one line, of which the last one counts.
            line = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
            tail.append(line)
            if line and (reason := on_line(line)):
                return reason
        if ended:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)


def _oom_kills() -> int:
    """Return how often the kernel has killed a process for want of memory; 0 where it does not say."""
    try:
        words = _VMSTAT.read_text(encoding="ascii").split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0
