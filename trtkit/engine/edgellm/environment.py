"""The environment that NVIDIA's exporter lives in: its numpy and torch are not those of trtkit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from trtkit.errors import EnvironmentLacks

VARIABLE, FOLDER = "TRTKIT_EDGELLM_PYTHON", ".venv-edgellm"
PACKAGE, FIRST = "tensorrt-edgellm", "0.11"
_HINT = f"make it by `make edgellm-env`, or name an interpreter that has {PACKAGE}[export]: {VARIABLE}=PYTHON"
_ASK = f"import importlib.metadata; print(importlib.metadata.version({PACKAGE!r}))"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Environment:
    """An interpreter with the exporter beside it."""

    python: Path
    version: str

    @property
    def exporter(self) -> Path:
        """The command."""
        return self.python.with_name(f"{PACKAGE}-export")


def find_environment() -> Environment:
    """Return the environment that ``TRTKIT_EDGELLM_PYTHON`` names, or the one in the working directory.

    Raises:
        EnvironmentLacks: There is none, or its exporter is too old.
    """
    given = os.environ.get(VARIABLE)
    python = Path(given).expanduser() if given else Path(FOLDER, "bin", "python")
    # Not resolved: a virtual environment's interpreter is a link, and the commands lie beside the link.
    found = Environment(python.absolute(), _version(python.absolute()))
    if not found.exporter.is_file():
        raise EnvironmentLacks("there is no exporter of Edge-LLM", path=found.exporter, hint=_HINT)
    try:
        is_old = Version(found.version) < Version(FIRST)
    except InvalidVersion:
        is_old = True
    if is_old:
        message = f"Edge-LLM {found.version} is not at least {FIRST}"
        raise EnvironmentLacks(message, path=python, hint=_HINT)
    return found


@cache
def _version(python: Path) -> str:
    if not python.is_file():
        raise EnvironmentLacks("there is no environment of Edge-LLM", path=python, hint=_HINT)
    try:
        told = subprocess.run(
            [python, "-c", _ASK],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentLacks(f"it has no {PACKAGE}", path=python, hint=_HINT) from error
    return told.stdout.strip()
