"""The compiler's process: TensorRT for RTX in an interpreter of its own, so that its end is an error and not ours."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checkpoint.progress import Progress
from trtkit.engine.rtx.walk import Layer
from trtkit.errors import EnvironmentLacks, StageError

PYTHON = "TRTKIT_RTX_PYTHON"
"""Environment variable: the Python that has TensorRT for RTX; ours where it is not set."""
MODULE = "tensorrt_rtx"
INSTALL = f"pip install 'trtkit[rtx]', or set {PYTHON} to a Python that has tensorrt-rtx-cu13"
CHILD = Path(__file__).with_name("child.py")
STEPS = "engine"
"""Name of the compiler's own steps, for whoever shows progress."""
_VERSION = r"\d+(\.\w+)+"
_SHOWN_LINES = 3
_ERROR = "[ERROR] "
_REFUSAL = "BuildError"
"""The child's own exception; any other is the system's."""


@dataclass(frozen=True)
class Compilation:
    """What a compilation took."""

    engine_bytes: int
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int


def interpreter() -> str:
    """Return the Python that compiles."""
    return os.environ.get(PYTHON) or sys.executable


def compiler_version() -> str:
    """Return the version of TensorRT for RTX.

    Raises:
        EnvironmentLacks: It is not installed, or cannot be loaded.
    """
    code = f"import {MODULE}; print({MODULE}.__version__)"
    try:
        asked = subprocess.run(
            [interpreter(), "-c", code], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        message = f"{interpreter()} cannot be started: {error.strerror}"
        raise EnvironmentLacks(message, hint=f"set {PYTHON} to a Python interpreter") from None
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["no reason was given"])[-1]
        message = f"the rtx back end needs TensorRT for RTX, which {interpreter()} cannot load: {why}"
        raise EnvironmentLacks(message, hint=INSTALL)
    if not re.fullmatch(_VERSION, asked.stdout.strip()):
        message = f"{interpreter()} gives no version of TensorRT for RTX, so that it is no Python that has it"
        raise EnvironmentLacks(message, hint=INSTALL)
    return asked.stdout.strip()


def compile_model(
    job: Path, log: Path, check: Callable[[Sequence[Layer]], None], report: Progress
) -> Compilation:
    """Run a job to its end; ``check`` sees the network before anything is compiled, and may raise.

    Raises:
        StageError: The compiler failed or was killed; its messages are in ``log``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as messages:
        child = subprocess.Popen(
            [interpreter(), str(CHILD), str(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            errors="replace",
        )
        try:
            last = _converse(child, check, report)
            child.wait()
        finally:
            child.kill()
            child.communicate()
    if last.get("event") == "done":
        report(STEPS, 1, 1)
        return Compilation(
            int(last["engine_bytes"]), last["wall_s"], last["cpu_s"], int(last["peak_rss_bytes"])
        )
    raise StageError(_failure(child.returncode, last, log), path=log, hint=_way_out(child.returncode))


def _converse(
    child: subprocess.Popen[str], check: Callable[[Sequence[Layer]], None], report: Progress
) -> Mapping[str, Any]:
    """Follow the child's lines, and let it go on once its network was looked at; return the last line."""
    last: Mapping[str, Any] = {}
    for line in child.stdout or ():
        last = _read(line)
        if last.get("event") == "network":
            check([Layer.of(each) for each in last["layers"]])
            _answer(child)
        elif last.get("event") == "progress":
            report(STEPS, last["done"], last["total"])
    return last


def _read(line: str) -> Mapping[str, Any]:
    """Return what a line says: nothing where the process ended within it, as one that is killed does."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _answer(child: subprocess.Popen[str]) -> None:
    # One that has ended reads nothing; how it ended is said when its lines are read.
    with suppress(BrokenPipeError):
        if child.stdin is not None:
            child.stdin.write("build\n")
            child.stdin.flush()


def _failure(code: int, last: Mapping[str, Any], log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if last.get("event") == "failed":
        errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        refused = last.get("kind", _REFUSAL) == _REFUSAL
        what = "TensorRT for RTX refused the graph" if refused else "the compiler's process failed"
        return "; ".join([f"{what}: {last['message']}", *errors[:_SHOWN_LINES]])
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    said = "; ".join(lines[-_SHOWN_LINES:]) or "it said nothing"
    return f"the compiler's process {ended} before it had an engine: {said}"


def _way_out(code: int) -> str:
    if code == -signal.SIGKILL:
        return "it was killed, most often for memory: `dmesg` says so; free memory, or lower engine.limits"
    return "read that log; `trtkit doctor` shows what is installed"
