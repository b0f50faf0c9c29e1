"""The CPU back end, as the build sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtkit.checkpoint.progress import Progress
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.cpu.compile import compile_engine
from trtkit.engine.cpu.folder import MODEL_FILE
from trtkit.engine.cpu.precision import runtime_block
from trtkit.errors import EnvironmentLacks
from trtkit.plan import Plan

_PACKAGES = ("openvino", "openvino-genai")


class CpuBackend:
    """OpenVINO as the engine."""

    def files(self, plan: Plan) -> tuple[str, ...]:
        """Return the engine's files."""
        del plan
        return (MODEL_FILE, Path(MODEL_FILE).with_suffix(".bin").name, CHECKPOINT_CONFIG)

    def versions(self) -> Mapping[str, str]:
        """Return the compiler's versions and the numeric settings."""
        try:
            packages = {name: version(name) for name in _PACKAGES}
        except PackageNotFoundError as error:
            hint = "pip install 'trtkit[cpu]'"
            raise EnvironmentLacks(f"the CPU back end needs the package {error.name}", hint=hint) from None
        settings = {name: str(value) for name, value in runtime_block(None).items() if name != "threads"}
        return packages | settings

    def compile(
        self, checkpoint: Path, out: Path, plan: Plan, report: Progress, log: Path
    ) -> Mapping[str, Any]:
        """Write the engine and prove that it runs one token."""
        del report, log
        facts = asdict(compile_engine(checkpoint, out, plan))
        del facts["engine_dir"]
        return facts
