"""For GPUs that TensorRT for RTX does not know: the graph's profiles and a script that TensorRT runs on that GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trtkit.engine.graph.spec import MODEL_FILE, CacheSize, GraphSpec
from trtkit.engine.rtx.compiler import CHILD
from trtkit.engine.rtx.config import ENGINE_FILE

PROFILES_FILE = "profiles.json"
SCRIPT_FILE = "build_engine.py"
OTHER_ENGINE_FILE = "tensorrt.engine"
"""What the script makes, beside the engine of TensorRT for RTX where there is one."""
COMMAND = f"pip install 'tensorrt>=11' && python {SCRIPT_FILE} {PROFILES_FILE}"
"""What makes the engine, in the engine's folder, on a machine with the GPU."""


def job_for(
    spec: GraphSpec, cache: CacheSize, *, module: str, sms: tuple[int, ...], engine: str = ENGINE_FILE
) -> dict[str, Any]:
    """Return what the compiler's process is asked for; ``ask`` is for who wants to see the network first."""
    profiles = [
        {name: [list(shape) for shape in shapes] for name, shapes in profile.items()}
        for profile in spec.profiles(cache).values()
    ]
    return {
        "module": module,
        "model": MODEL_FILE,
        "engine": engine,
        "sms": list(sms),
        "profiles": profiles,
        "ask": False,
    }


def write_elsewhere(out: Path, spec: GraphSpec, cache: CacheSize) -> None:
    """Write the script and its job, whose paths are relative to the folder."""
    job = job_for(spec, cache, module="tensorrt", sms=(), engine=OTHER_ENGINE_FILE)
    (out / PROFILES_FILE).write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(CHILD, out / SCRIPT_FILE)
