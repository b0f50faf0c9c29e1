"""What a back end is, and which ones there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from trtkit.catalog.formats import BUILT
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress
from trtkit.engine.exported import EXPORTED, ExportBackend
from trtkit.errors import InputError
from trtkit.plan import Plan


class Backend(Protocol):
    """Compiles a TensorRT-LLM checkpoint into an engine folder."""

    def files(self, plan: Plan, /) -> tuple[str, ...]:
        """Return the names of the engine's files."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions and settings that can change the engine's bytes; they are part of its key.

        Raises:
            EnvironmentLacks: The compiler is not installed.
        """

    def compile(
        self, checkpoint: Path, out: Path, plan: Plan, report: Progress, log: Path
    ) -> Mapping[str, Any]:
        """Write the engine into the empty folder ``out`` and return facts for the manifest.

        A compiler that runs by itself writes its messages to ``log``, which outlives ``out`` when it fails.

        Raises:
            StageError: The compiler failed or its product is not usable.
        """


def backend_for(name: str, source: HfCheckpoint | None = None) -> Backend:
    """Return the back end of that name; those that read Hugging Face folders take what is no weight from ``source``."""
    if name in EXPORTED and source is not None:
        from trtkit.engine.edgellm.backend import EdgellmBackend

        return EdgellmBackend(source) if name == "edgellm" else ExportBackend(source)
    if name == "cpu":
        from trtkit.engine.cpu.backend import CpuBackend

        return CpuBackend()
    if name in {"onnx", "rtx"}:
        from trtkit.engine.rtx.backend import OnnxBackend, RtxBackend

        return OnnxBackend() if name == "onnx" else RtxBackend()
    if name == "tensorrt":
        from trtkit.engine.tensorrt.backend import TensorrtBackend

        return TensorrtBackend()
    raise InputError(f"there is no back end {name!r}", hint=f"use one of {', '.join(BUILT)}")
