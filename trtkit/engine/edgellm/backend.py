"""Checkpoint → Hugging Face folder → ONNX by NVIDIA's exporter, and the command that builds the engine elsewhere."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import HfCheckpoint, read_json
from trtkit.checkpoint.progress import Progress
from trtkit.engine.edgellm.environment import PACKAGE, find_environment
from trtkit.engine.exported import FILES, MODEL, export
from trtkit.engine.tensorrt.child import Ended, run
from trtkit.errors import InputError, StageError
from trtkit.plan import Plan

ONNX, SCRIPT = "onnx", "build.sh"
"""What the exporter writes, and the script that builds the engine, in the product."""
GRAPH = f"{ONNX}/llm/model.onnx"
_TAIL_LINES = 12
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class EdgellmBackend:
    """The half of Edge-LLM that needs no GPU."""

    source: HfCheckpoint

    def files(self, plan: Plan, /) -> tuple[str, ...]:
        """Return the product's files."""
        del plan
        return (*FILES, GRAPH, SCRIPT)

    def versions(self) -> Mapping[str, str]:
        """Return the exporter's version.

        Raises:
            EnvironmentLacks: It is not installed.
        """
        return {PACKAGE: find_environment().version}

    def compile(
        self, checkpoint: Path, out: Path, plan: Plan, report: Progress, log: Path
    ) -> Mapping[str, Any]:
        """Write folder, graph and script.

        Raises:
            StageError: The exporter failed; its log stays.
        """
        facts = export(checkpoint, self.source, out, report)
        report("onnx", 0, None)
        log.unlink(missing_ok=True)
        ended = _run(export_argv(out), log)
        if ended.code != 0 or not (out / GRAPH).is_file():
            tail = "\n".join(f"    {line}" for line in ended.tail[-_TAIL_LINES:])
            message = f"NVIDIA's exporter ended with {ended.code} and no graph:\n{tail}"
            raise StageError(message, path=log, hint="read its log; the exported folder is what it was given")
        script = out / SCRIPT
        script.write_text(build_script(plan), encoding="utf-8")
        script.chmod(0o755)
        return {**facts, "seconds": round(ended.seconds, 1), "build": list(build_argv(plan))}


def export_argv(out: Path) -> tuple[str, ...]:
    """Return the exporter's command."""
    return (str(find_environment().exporter), str(out / MODEL), str(out / ONNX))


def build_argv(plan: Plan) -> tuple[str, ...]:
    """Return the command that builds the engine, run in the product's folder on the machine with the GPU."""
    limits = plan.limits
    sizes = {
        "max-input-len": limits.max_input_len,
        "max-kv-cache-capacity": limits.max_seq_len,
        "max-batch-size": limits.max_batch_size,
    }
    given = (word for name, value in sizes.items() for word in (f"--{name}", str(value)))
    return (f"{PACKAGE}-build", "--model-dir", MODEL, "--engine-dir", "engine", *given)


def build_script(plan: Plan) -> str:
    """Return that command as a script, which runs wherever the folder was copied to."""
    target = f"# For {plan.gpu}; needs {PACKAGE}[tools], TensorRT and the GPU."
    return "\n".join(
        (
            "#!/usr/bin/env bash",
            target,
            "set -euo pipefail",
            'cd "$(dirname "$0")"',
            f"exec {shlex.join(build_argv(plan))}",
            "",
        )
    )


def need_chat_template(source: HfCheckpoint) -> None:
    """Refuse a source that the exporter refuses in its last step.

    Raises:
        InputError: Its tokenizer has no chat template.
    """
    folder, described = source.folder, source.folder / "tokenizer_config.json"
    if any((folder / name).is_file() for name in _TEMPLATES):
        return
    if not described.is_file() or not read_json(described).get("chat_template"):
        hint = "use the model that was tuned to chat, or put its chat_template.jinja beside the tokenizer"
        raise InputError("Edge-LLM takes no model without a chat template", path=folder, hint=hint)


def _run(argv: tuple[str, ...], log: Path) -> Ended:
    """Run the exporter away from GPUs and the network, in an empty folder."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory(prefix="trtkit-edgellm-") as folder:
        return run(argv, log_file=log, cwd=Path(folder), env=env, on_line=lambda _: "")
