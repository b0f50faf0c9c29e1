"""What this machine has and lacks, part by part."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from trtkit.engine.backend import backend_for
from trtkit.engine.installed import install_hint
from trtkit.engine.rtx.compiler import PYTHON, compiler_version, interpreter
from trtkit.engine.slots.cuda import find_sm
from trtkit.engine.store import HOME_VARIABLE, default_root
from trtkit.errors import EnvironmentLacks
from trtkit.flow.machine import host_place, this_machine


@dataclass(frozen=True)
class Finding:
    """One part of the machine."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def findings() -> list[Finding]:
    """Look at Python, machine, back end, server and store; nothing is started or written."""
    return [_look(name, look) for name, look in _LOOKS]


def _look(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, ok=True, detail=look())
    except EnvironmentLacks as error:
        return Finding(name, ok=False, detail=error.message, hint=error.hint)


def _python() -> str:
    found = ".".join(map(str, sys.version_info[:3]))
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        raise EnvironmentLacks(f"Python {found} is not supported", hint="use Python 3.10, 3.11 or 3.12")
    return found


def _machine() -> str:
    place = host_place()
    return f"{this_machine().cores} cores, {(place.memory_bytes or 0) / 1e9:.1f} GB of {place.name}"


def _cpu_backend() -> str:
    return ", ".join(f"{name} {value}" for name, value in backend_for("cpu").versions().items())


def _kernels() -> str:
    """Say what quantizes; to lack numba is no fault."""
    try:
        return f"numba {version('numba')}"
    except PackageNotFoundError:
        return "numpy; the extra `fast` quantizes large models in half the time"


def _graphs() -> str:
    """Say what writes graphs and runs them on the CPU; to lack it is no fault."""
    found = []
    for name in ("onnx", "onnxruntime"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found) if len(found) > 1 else f"not installed; {install_hint('onnx')}"


def _compiler() -> str:
    """Say what compiles graphs for GPUs; to lack it is a fault where somebody has named the Python that has it."""
    try:
        return f"TensorRT for RTX {compiler_version()} of {interpreter()}"
    except EnvironmentLacks as error:
        if PYTHON in os.environ:
            raise
        return f"not installed; {error.hint}"


def _gpu() -> str:
    try:
        return f"SM {find_sm()}"
    except EnvironmentLacks as error:
        return f"none to serve on; {error.message}"


def _triton() -> str:
    from trtkit.triton.environment import find_installation

    return str(find_installation().server)


def _program(name: str, without: str) -> Callable[[], str]:
    """Look for what only engines of TensorRT-LLM need; to lack it is no fault."""
    return lambda: shutil.which(name) or f"not on PATH; {without}"


def _store() -> str:
    root = default_root()
    there = next(path for path in (root, *root.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        hint = f"set {HOME_VARIABLE} to a folder that can be written to"
        raise EnvironmentLacks(f"{there} cannot be written to", hint=hint)
    return str(root)


_LOOKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("python", _python),
    ("machine", _machine),
    ("cpu back end", _cpu_backend),
    ("kernels", _kernels),
    ("onnx back end", _graphs),
    ("rtx compiler", _compiler),
    ("rtx device", _gpu),
    ("tritonserver", _triton),
    ("nvidia-smi", _program("nvidia-smi", "engines for GPUs are built on a machine with one")),
    ("trtllm-build", _program("trtllm-build", "`trtkit build --in-container` has it in NVIDIA's image")),
    ("docker", _program("docker", "`trtkit build --in-container` and compose files need it")),
    ("store", _store),
)
