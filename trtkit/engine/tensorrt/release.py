"""Which release of TensorRT-LLM would build: an engine loads in the very release that built it, not in its line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from packaging.version import InvalidVersion, Version

from trtkit.catalog.trtllm import IMAGES, image_reference
from trtkit.engine.tensorrt.argv import BUILDER

_SAID = re.compile(r"TensorRT-LLM version: (\S+)")
_METADATA = "import importlib.metadata as m; print('TensorRT-LLM version:', m.version('tensorrt_llm'))"
_TIMEOUT_S = 120.0


def image_release(image: str | None) -> str | None:
    """Return the release in an image; None where the catalog does not know it."""
    return next((each.release for each in IMAGES.values() if image_reference(each.tag) == image), None)


def builder_release() -> str | None:
    """Return the release of the builder on PATH; None without one, and where it does not say.

    The Python that runs it is asked first, in some 50 ms: the builder itself imports all of TensorRT-LLM to say it.
    """
    builder = shutil.which(BUILDER)
    if builder is None:
        return None
    with Path(builder).open("rb") as file:
        first = file.readline().decode(errors="replace")
    interpreter = first.removeprefix("#!").split()
    ask = [(*interpreter, "-c", _METADATA)] if first.startswith("#!") and "python" in first else []
    return next(filter(None, map(_said_by, [*ask, (builder, "--help")])), None)


def other_release(built: object, here: str | None) -> str:
    """Return why an engine of the release ``built`` is not what ``here`` would build; empty where nothing says so."""
    try:
        differs = here is not None and Version(str(built)).public != Version(here).public
    except InvalidVersion:  # whoever reads the engine says what is wrong with it
        return ""
    return (
        f"TensorRT-LLM: {built} built it -> {here} builds here, which loads no engine but its own"
        if differs
        else ""
    )


def _said_by(command: tuple[str, ...]) -> str | None:
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _SAID.search(told.stdout)
    return found[1] if found else None
