"""A real tritonserver as a context manager: started, probed, watched, and gone without a trace."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from trtkit.errors import InputError, StartError
from trtkit.triton import keeper
from trtkit.triton.environment import find_installation
from trtkit.triton.parts import needs_device
from trtkit.triton.ports import choose_ports
from trtkit.triton.probe import decisive_lines, is_ready, probe_bls
from trtkit.triton.stubs import Loading, Stub, running_stubs, runs

HOST = "127.0.0.1"
_TMP = "/tmp"  # noqa: S108 - where Linux has it
_POLL_S = 0.1
_UNLOAD_S = 5.0
"""Time to unload the models, after the grace period for requests in flight (3 s for five models)."""
_CLEAN_S = 2.0
"""Longer than the keeper takes to kill what ignored SIGTERM."""

Probe = Callable[[str, float], None]
"""Takes the HTTP root and a timeout in seconds, tries the server out; raises StartError with what went wrong."""


class TritonServer:
    """One tritonserver for one model repository. Ports given as 0 are chosen when the object is made."""

    def __init__(
        self,
        repo: Path,
        *,
        log_file: Path,
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        host: str = HOST,
        grace_s: float = 5.0,
    ) -> None:
        """Check machine, repository and ports. Raises EnvironmentLacks, InputError, StartError."""
        self._installation = find_installation()
        if not any(repo.glob("*/config.pbtxt")):
            raise InputError(
                "not a model repository", path=repo, hint="make one: trtkit repo CONTRACT -o DIR"
            )
        self.repo = repo.absolute()
        self.log_file = log_file.absolute()
        self.host = host
        names, wanted = ("HTTP", "gRPC", "metrics"), (http_port, grpc_port, metrics_port)
        self.http_port, self.grpc_port, self.metrics_port = choose_ports(names, wanted, host=host)
        self._grace_s = grace_s
        self._shm_prefix = f"trtkit-{uuid.uuid4().hex[:12]}-"
        temporary = tempfile.gettempdir()
        self._folder = Path(temporary if _plain(temporary) else _TMP, f"{self._shm_prefix}triton")
        self._served = self.repo if _plain(self.repo) else self._folder / "repository"
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._log_start = 0
        self._stubs: tuple[Stub, ...] = ()
        self._failure = ""

    @property
    def grpc_address(self) -> str:
        """Where clients and the proxy connect."""
        return f"{self.host}:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        """Root of Triton's HTTP interface."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def command(self) -> tuple[str, ...]:
        """The exact argument list of tritonserver."""
        return (
            str(self._installation.server),
            f"--model-repository={self._served}",
            f"--backend-directory={self._folder / 'backends'}",
            *(f"--{kind}-address={self.host}" for kind in ("http", "grpc", "metrics")),
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            f"--exit-timeout-secs={int(self._grace_s)}",
            "--disable-auto-complete-config",
            "--allow-gpu-metrics=false",
        )

    @property
    def env(self) -> Mapping[str, str]:
        """What tritonserver's environment has on top of this process's."""
        return self._installation.environment(with_device=needs_device(self.repo))

    def dry_run(self) -> str:
        """Return what :meth:`start` would run, as one shell command."""
        return shlex.join(["env", *(f"{key}={value}" for key, value in self.env.items()), *self.command])

    def __enter__(self) -> TritonServer:  # noqa: PYI034 - typing.Self needs Python 3.11
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start tritonserver under a keeper that ends it with this process. Does not wait until it serves.

        Raises InputError for a log that cannot be written.
        """
        with self._open_log() as log:
            self._log_start, self._failure, self._stubs = log.tell(), "", ()
            try:
                self._lay_out()
                self._launch(log)
            except BaseException:  # also Ctrl-C: who gets no server cannot stop it
                self.stop()
                raise

    def _open_log(self) -> IO[bytes]:
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            return self.log_file.open("ab")
        except OSError as error:
            raise InputError(
                f"the log cannot be written: {error.strerror}",
                path=self.log_file,
                hint="name a file in a folder that you may write to",
            ) from error

    def _lay_out(self) -> None:
        self._folder.mkdir(mode=0o700)
        self._installation.lay_out(self._folder / "backends")
        if self._served != self.repo:
            self._served.symlink_to(self.repo)

    def _launch(self, log: IO[bytes]) -> None:
        job = {
            "command": self.command,
            "folder": str(self._folder),
            "log_file": str(self.log_file),
            "shm_prefix": self._shm_prefix,
            "grace_s": self._grace_s + _UNLOAD_S,
        }
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, json.dumps(job)],
            env={**os.environ, **self.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # a Ctrl-C on the terminal is the owner's to handle
        )
        self._pid = int(_pipe(self._keeper.stdout).readline() or 0)

    def wait_ready(self, timeout_s: float = 120.0, probe: Probe = probe_bls) -> None:
        """Wait until every model is ready and ``probe`` got a real answer. Raises StartError."""
        deadline = time.monotonic() + timeout_s
        loading = Loading()
        while not is_ready(self.http_url):
            if self._keeper is None or self._keeper.poll() is not None:
                raise self._start_error(f"{self.failure()} before it was ready")
            if lost := loading.lost(self._log(), running_stubs(self._pid), time.monotonic()):
                self._failure = f"the Python process of {', '.join(lost)} ended while its model was loading"
                raise self._start_error(self._failure)
            if time.monotonic() > deadline:
                raise self._start_error(f"tritonserver was not ready after {timeout_s:g} s")
            time.sleep(_POLL_S)
        self._stubs = running_stubs(self._pid)
        try:
            probe(self.http_url, max(1.0, deadline - time.monotonic()))
        except StartError as error:
            raise self._start_error(error.message) from error

    def failure(self) -> str:
        """Return why the server cannot serve, empty when it can: the first failure found, also later.

        Triton's own health stays good when a stub dies.
        """
        if self._keeper is None:
            return self._failure or "tritonserver does not run"
        self._failure = self._failure or self._find_failure(self._keeper)
        return self._failure

    def _find_failure(self, server: subprocess.Popen[bytes]) -> str:
        if server.poll() is not None:
            return f"tritonserver {_ended(server.returncode)}"
        dead = [stub for stub in self._stubs if not stub.alive()]
        if not runs(self._pid):
            return ""  # it took its stubs along; its status is known in a moment
        return ", ".join(f"the Python process of {stub.instance} (pid {stub.pid}) died" for stub in dead)

    def alive(self) -> bool:
        """Return whether server and every model's process run; :meth:`failure` says what does not."""
        return not self.failure()

    def stop(self) -> None:
        """End the server within its grace period, by force if need be, and remove what it left."""
        if self._keeper is not None:
            self._end(self._keeper)
            self._keeper = None
        keeper.clear(self._shm_prefix, self._folder)

    def _end(self, server: subprocess.Popen[bytes]) -> None:
        if self.failure() and server.poll() is None:
            # Unloading a model whose process is dead, tritonserver waits for it or aborts.
            self._kill_group()
        _pipe(server.stdin).close()
        try:
            server.wait(self._grace_s + _UNLOAD_S + _CLEAN_S)
        except subprocess.TimeoutExpired:
            server.kill()
        if server.wait() == -signal.SIGKILL:
            self._kill_group()
        _pipe(server.stdout).close()

    def _kill_group(self) -> None:
        if self._pid:
            keeper.kill_group(self._pid)

    def _log(self) -> str:
        """Return what this start has written to the log, with the repository as its owner calls it."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace").replace(str(self._served), str(self.repo))

    def _start_error(self, message: str) -> StartError:
        lines = decisive_lines(self._log())
        text = "\n".join([message, *(f"    {line}" for line in lines)])
        return StartError(text, path=self.repo, hint=f"the whole log is {self.log_file}")


def _plain(path: Path | str) -> bool:
    """Return whether a shell takes a path as it is: Triton starts its stubs by one, without quotes."""
    return shlex.quote(str(path)) == str(path)


def _ended(status: int) -> str:
    """Say how a process ended: by its own status, or 128 + n, or -n, after signal n."""
    number = -status if status < 0 else status - keeper.SIGNALLED
    if number not in set(signal.Signals):
        return f"ended with status {status}"
    by_kernel = " (as the kernel does when memory runs out)" if number == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(number).name}{by_kernel}"


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    if end is None:
        raise RuntimeError("the keeper was started without pipes")
    return end
