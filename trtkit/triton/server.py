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
from trtkit.triton.ports import choose_ports
from trtkit.triton.probe import decisive_lines, is_ready, probe_bls
from trtkit.triton.stubs import Stub, running_stubs

HOST = "127.0.0.1"
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
        self._folder = Path(tempfile.gettempdir(), f"{self._shm_prefix}triton")
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._log_start = 0
        self._stubs: tuple[Stub, ...] = ()

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
            f"--model-repository={self.repo}",
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
        return self._installation.environment()

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
        """Start tritonserver under a keeper that ends it with this process. Does not wait until it serves."""
        self._folder.mkdir(mode=0o700)
        self._installation.lay_out(self._folder / "backends")
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        job = {
            "command": self.command,
            "folder": str(self._folder),
            "log_file": str(self.log_file),
            "shm_prefix": self._shm_prefix,
            "grace_s": self._grace_s + _UNLOAD_S,
        }
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
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
        while not is_ready(self.http_url):
            if self._keeper is None or self._keeper.poll() is not None:
                raise self._start_error("tritonserver ended before it was ready")
            if time.monotonic() > deadline:
                raise self._start_error(f"tritonserver was not ready after {timeout_s:g} s")
            time.sleep(_POLL_S)
        self._stubs = running_stubs(self._pid)
        try:
            probe(self.http_url, max(1.0, deadline - time.monotonic()))
        except StartError as error:
            raise self._start_error(error.message) from error

    def failure(self) -> str:
        """Return why the server cannot serve, empty when it can. Triton's own health stays good when a stub dies."""
        if self._keeper is None:
            return "tritonserver was not started"
        if self._keeper.poll() is not None:
            return f"tritonserver ended with status {self._keeper.returncode}"
        dead = [stub for stub in self._stubs if not stub.alive()]
        return ", ".join(f"the Python process of {stub.instance} (pid {stub.pid}) died" for stub in dead)

    def alive(self) -> bool:
        """Return whether server and every model's process run; :meth:`failure` says what does not."""
        return not self.failure()

    def stop(self) -> None:
        """End the server within its grace period, by force if need be, and remove what it left."""
        if self._keeper is None:
            return
        _pipe(self._keeper.stdin).close()
        try:
            self._keeper.wait(self._grace_s + _UNLOAD_S + _CLEAN_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
        if self._keeper.wait() == -signal.SIGKILL and self._pid:
            keeper.kill_group(self._pid)
        _pipe(self._keeper.stdout).close()
        keeper.clear(self._shm_prefix, self._folder)
        self._keeper = None

    def _start_error(self, message: str) -> StartError:
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            lines = decisive_lines(log.read().decode(errors="replace"))
        text = "\n".join([message, *(f"    {line}" for line in lines)])
        return StartError(text, path=self.repo, hint=f"the whole log is {self.log_file}")


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    if end is None:
        raise RuntimeError("the keeper was started without pipes")
    return end
