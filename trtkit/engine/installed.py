"""Whether what an engine runs on is installed, found out before Triton starts it.

Triton would only say that a model failed to load; what lacks would be in its log.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.errors import EnvironmentLacks

_TOKENIZERS = ("proxy", {"tokenizers": "tokenizers"})
_RUNTIMES: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": ("cpu", {"openvino": "openvino", "openvino_genai": "openvino-genai"}),
    "onnx": ("onnx", {"onnxruntime": "onnxruntime"}),
    "rtx": ("rtx", {"tensorrt_rtx": "tensorrt-rtx", "cuda.bindings": "cuda-bindings"}),
}
"""By back end: the extra, and the modules that it is imported as, each with the package that has it."""


def check_installed(backends: Iterable[str], *, text: bool, path: Path | None = None) -> None:
    """Make sure that this Python has what runs engines of these back ends; ``text`` takes tokenizers too.

    Raises:
        EnvironmentLacks: It has not; everything that lacks is named, with the extra to install.
    """
    parts = [_RUNTIMES[name] for name in dict.fromkeys(backends) if name in _RUNTIMES]
    parts += [_TOKENIZERS] if text else []
    lacking = {extra: found for extra, modules in parts if (found := [*_lacking(modules)])}
    if lacking:
        packages = ", ".join(name for names in lacking.values() for name in names)
        message = f"what would be served needs {packages}, which is not installed"
        raise EnvironmentLacks(message, hint=install_hint(*lacking), path=path)


def install_hint(*extras: str) -> str:
    """Return what installs extras, on a Python that they are for."""
    install = f"pip install 'trtkit[{','.join(extras)}]'"
    if "onnx" in extras and sys.version_info < (3, 11):
        return (
            f"with Python 3.11 or 3.12, since no ONNX Runtime for 3.10 has the graph's operators: {install}"
        )
    return install


def check_repository(repository: Path) -> None:
    """Make sure of the same for a repository's engines and tokenizers; raises as :func:`check_installed` does."""
    configs = sorted(repository.glob(f"*/*/engine/{CHECKPOINT_CONFIG}"))
    text = any(repository.glob("*/*/tokenizer/tokenizer.json"))
    check_installed(filter(None, map(backend_of, configs)), text=text, path=repository)


def backend_of(config: Path) -> str:
    """Return the back end that an engine of trtkit's own names; empty where whoever loads it says what is wrong."""
    try:
        return str(json.loads(config.read_text(encoding="utf-8"))["backend"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _lacking(modules: dict[str, str]) -> Iterator[str]:
    for module, package in modules.items():
        try:
            found = find_spec(module)
        except ModuleNotFoundError:  # what it is in is not there either
            found = None
        if found is None:
            yield package
