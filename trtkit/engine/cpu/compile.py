"""From a TensorRT-LLM checkpoint to an engine folder: OpenVINO's model and a ``config.json`` like TensorRT-LLM's."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.cpu.folder import MODEL_FILE, EngineFolder
from trtkit.engine.cpu.kv import BLOCK_TOKENS
from trtkit.engine.cpu.precision import runtime_block
from trtkit.engine.inflight.limits import engine_config
from trtkit.errors import EnvironmentLacks, StageError
from trtkit.plan.types import Plan


@dataclass(frozen=True)
class EngineInfo:
    """What a compilation made."""

    engine_dir: Path
    graph_s: float
    """Reading the checkpoint, quantizing and writing the model."""
    compile_s: float
    """Compiling what was written, and one token of it."""
    model_bytes: int
    weights_bytes: int


def compile_engine(checkpoint_dir: Path, out_dir: Path, plan: Plan) -> EngineInfo:
    """Write the engine into the empty ``out_dir`` and prove that it runs; raise :class:`StageError`."""
    import openvino as ov

    from trtkit.checkpoint.trtllm import TrtllmCheckpoint
    from trtkit.engine.cpu.graph import build_model
    from trtkit.engine.inflight.pipeline import reason

    _check(plan)
    start_s = time.monotonic()
    checkpoint = TrtllmCheckpoint.open(checkpoint_dir)
    model = build_model(checkpoint)
    try:
        ov.save_model(model, out_dir / MODEL_FILE, compress_to_fp16=False)
    except RuntimeError as error:
        hint = "free space: `df` shows how much is left there"
        message = f"OpenVINO cannot write the model: {reason(error)}"
        raise EnvironmentLacks(message, path=out_dir.parent, hint=hint) from error
    runtime = runtime_block(plan.threads)
    config = engine_config(checkpoint.config, plan, runtime, enable_block_reuse=plan.enable_block_reuse)
    (out_dir / CHECKPOINT_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    written_s = time.monotonic()
    prove(out_dir)
    return EngineInfo(
        engine_dir=out_dir,
        graph_s=written_s - start_s,
        compile_s=time.monotonic() - written_s,
        model_bytes=(out_dir / MODEL_FILE).stat().st_size,
        weights_bytes=(out_dir / MODEL_FILE).with_suffix(".bin").stat().st_size,
    )


def prove(engine_dir: Path) -> None:
    """Compile both forms of the model and run them once; raise :class:`StageError` unless the logits are finite."""
    import numpy as np

    from trtkit.engine.cpu.oracle import Oracle
    from trtkit.engine.cpu.pipeline import probe
    from trtkit.engine.inflight.pipeline import reason

    folder = EngineFolder.open(engine_dir)
    try:
        logits = Oracle(folder.model_file, folder.properties).open().next_logits([0, 0])
        probe(folder)
    except RuntimeError as error:
        hint = "the CPU back end needs OpenVINO 2026.4; `trtkit doctor` shows what is installed"
        raise StageError(f"OpenVINO cannot run it: {reason(error)}", path=engine_dir, hint=hint) from error
    if not np.isfinite(logits).all():
        hint = "a tensor of the checkpoint holds values that are not finite: convert it again from its source"
        raise StageError("the model's logits are not finite", path=engine_dir, hint=hint)


def _check(plan: Plan) -> None:
    if plan.limits.tokens_per_block != BLOCK_TOKENS:
        raise StageError(
            f"tokens_per_block is {plan.limits.tokens_per_block}, the CPU back end has blocks of {BLOCK_TOKENS}",
            hint=f"set engine.kv_cache.tokens_per_block: {BLOCK_TOKENS}",
        )
