"""The two back ends with a graph, as the build sees them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtkit.checkpoint.progress import Progress
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.graph.spec import DATA_FILE, MODEL_FILE
from trtkit.engine.rtx.compile import LOG_FILE, compile_engine, compile_graph, split_sms
from trtkit.engine.rtx.compiler import MODULE, compiler_version
from trtkit.engine.rtx.config import ENGINE_FILE
from trtkit.engine.rtx.elsewhere import PROFILES_FILE, SCRIPT_FILE
from trtkit.errors import EnvironmentLacks
from trtkit.plan import Plan

_GRAPH_FILES = (MODEL_FILE, DATA_FILE, CHECKPOINT_CONFIG)


class OnnxBackend:
    """The graph alone, which ONNX Runtime compiles when it is loaded."""

    def files(self, plan: Plan) -> tuple[str, ...]:
        """Return the engine's files."""
        del plan
        return _GRAPH_FILES

    def versions(self) -> Mapping[str, str]:
        """Return the version of what writes the graph."""
        return _version_of("onnx", "onnx")

    def compile(
        self, checkpoint: Path, out: Path, plan: Plan, report: Progress, log: Path
    ) -> Mapping[str, Any]:
        """Write the graph."""
        del log
        return compile_graph(checkpoint, out, plan, report)


class RtxBackend:
    """TensorRT for RTX, ahead of time and without a GPU."""

    def files(self, plan: Plan) -> tuple[str, ...]:
        """Return the engine's files."""
        here, elsewhere = split_sms(plan)
        compiled = (ENGINE_FILE, LOG_FILE) if here else ()
        return *_GRAPH_FILES, *compiled, *((PROFILES_FILE, SCRIPT_FILE) if elsewhere else ())

    def versions(self) -> Mapping[str, str]:
        """Return the versions of what writes the graph and of the compiler."""
        return {**_version_of("onnx", "rtx"), MODULE: compiler_version()}

    def compile(
        self, checkpoint: Path, out: Path, plan: Plan, report: Progress, log: Path
    ) -> Mapping[str, Any]:
        """Write the graph and the engine, which can only be run where the GPU is."""
        return compile_engine(checkpoint, out, plan, report, log)


def _version_of(package: str, extra: str) -> dict[str, str]:
    try:
        return {package: version(package)}
    except PackageNotFoundError:
        hint = f"pip install 'trtkit[{extra}]'"
        raise EnvironmentLacks(f"the {extra} back end needs the package {package}", hint=hint) from None
