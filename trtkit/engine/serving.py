"""Open an engine folder with whatever runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.inflight.engine import InflightEngine
from trtkit.engine.slots.folder import GRAPH_BACKENDS
from trtkit.errors import InputError


def open_engine(
    engine_dir: Path,
    tokenizer_path: Path | None = None,
    *,
    settle: Callable[[float], None] | None = None,
) -> InflightEngine:
    """Return the engine that its ``config.json`` names, running.

    Raises:
        InputError: This is no engine folder that trtkit can run.
        StageError: Its runtime cannot load it.
        EnvironmentLacks: Its runtime is not installed, or there is no device.
    """
    try:
        backend = json.loads((engine_dir / CHECKPOINT_CONFIG).read_text(encoding="utf-8"))["backend"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "build it with `trtkit build`"
        raise InputError(f"not an engine folder: {error!r}", path=engine_dir, hint=hint) from error
    if backend in GRAPH_BACKENDS:
        from trtkit.engine.slots.runtime import SlotEngine

        return SlotEngine(engine_dir, tokenizer_path, settle=settle)
    from trtkit.engine.cpu.runtime import CpuEngine

    return CpuEngine(engine_dir, tokenizer_path, settle=settle)
