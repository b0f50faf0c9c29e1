"""An engine folder: what is in it and how its ``config.json`` is read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.cpu.precision import plugin_properties
from trtkit.engine.inflight.limits import Limits
from trtkit.errors import InputError

MODEL_FILE = "openvino_model.xml"


@dataclass(frozen=True)
class EngineFolder:
    """The shapes and settings that an engine was compiled for."""

    path: Path
    limits: Limits
    enable_block_reuse: bool
    properties: dict[str, Any]
    """OpenVINO's properties for this machine."""

    @property
    def model_file(self) -> Path:
        """The model's XML; its weights lie beside it."""
        return self.path / MODEL_FILE

    @classmethod
    def open(cls, path: Path) -> EngineFolder:
        """Read ``config.json``; raise :class:`InputError` if this is no engine of the CPU back end."""
        hint = "build it with `trtkit build` and engine.backend: cpu"
        try:
            config = json.loads((path / CHECKPOINT_CONFIG).read_text(encoding="utf-8"))
            if config["backend"] != "cpu":
                raise InputError(
                    f"engine is for back end {config['backend']!r}, not cpu", path=path, hint=hint
                )
            return cls(
                path=path,
                limits=Limits.read(config),
                enable_block_reuse=config["build_config"]["enable_block_reuse"],
                properties=plugin_properties(config["runtime"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"not an engine folder: {error!r}", path=path, hint=hint) from error
