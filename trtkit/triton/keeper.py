"""Run one tritonserver and leave nothing behind, however it or its owner ends.

Started as a script (``python keeper.py JOB``), it runs the command of the JSON document JOB in a session of its
own and waits for the first of: the command ends, its standard input closes (the owner said stop, or died), a
signal. Then it ends the session's processes and removes the shared memory and the folder that JOB names.
It imports nothing of trtkit: it starts in milliseconds and outlives the owner's interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lives
SIGNALLED = 128
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def keep(job: Mapping[str, Any]) -> int:
    """Run the command until it or the owner ends; return its exit status, as a shell does: 128 + n after signal n."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the server's orphans become ours: we can wait for them

    def die_with_keeper() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    wake = _wake_on_signals()
    with Path(job["log_file"]).open("ab") as log:
        server = subprocess.Popen(
            job["command"],
            cwd=job["folder"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_keeper,  # noqa: PLW1509 - this process has one thread
        )
    try:
        print(server.pid, flush=True)  # noqa: T201 - the owner reads it
        _wait(server, wake)
    finally:
        end_session(server, grace_s=job["grace_s"])
        clear(job["shm_prefix"], Path(job["folder"]))
    return server.returncode if server.returncode >= 0 else SIGNALLED - server.returncode


def _wake_on_signals() -> int:
    """Return a descriptor that becomes readable on SIGTERM, SIGINT or the end of the child."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def _wait(server: subprocess.Popen[bytes], wake: int) -> None:
    while server.poll() is None:
        ready, _, _ = select.select([sys.stdin, wake], [], [])
        if sys.stdin in ready:
            return
        if any(number != signal.SIGCHLD for number in os.read(wake, 64)):
            return


def end_session(server: subprocess.Popen[bytes], *, grace_s: float) -> None:
    """Ask the server to end, wait ``grace_s``, then kill what is left of its session."""
    if server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(grace_s)
    kill_group(server.pid)
    server.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-server.pid, 0)


def kill_group(group: int) -> None:
    """Kill a process group; one that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def clear(shm_prefix: str, folder: Path) -> None:
    """Remove the server's shared memory regions and its private folder."""
    for region in SHARED_MEMORY.glob(f"{shm_prefix}*"):
        region.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(keep(json.loads(sys.argv[1])))
