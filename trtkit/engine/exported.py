"""Back ends that read a Hugging Face folder: what they are given to serve is the exported folder itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.catalog.support import EXPORTED
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export import export_hf
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.plan import Plan

__all__ = ["EXPORTED", "FILES", "MODEL", "ExportBackend", "export"]

MODEL = "model"
"""The folder inside the product."""
FILES = (f"{MODEL}/{CHECKPOINT_CONFIG}", f"{MODEL}/tokenizer.json")


@dataclass(frozen=True)
class ExportBackend:
    """TensorRT-LLM's Python API and vLLM: they compile when they start."""

    source: HfCheckpoint
    """What the checkpoint was made from: tokenizer, templates and what no layer holds."""

    def files(self, plan: Plan, /) -> tuple[str, ...]:
        """Return the files without which nothing is served."""
        del plan
        return FILES

    def versions(self) -> Mapping[str, str]:
        """Return nothing: trtkit alone writes the folder."""
        return {}

    def compile(
        self, checkpoint: Path, out: Path, plan: Plan, report: Progress, log: Path
    ) -> Mapping[str, Any]:
        """Write the folder.

        Raises:
            InputError: The checkpoint's format has no form there.
        """
        del plan, log
        return export(checkpoint, self.source, out, report)


def export(checkpoint: Path, source: HfCheckpoint, out: Path, report: Progress) -> dict[str, Any]:
    """Write a checkpoint as a Hugging Face folder into ``out``, and return what it is."""
    done = export_hf(TrtllmCheckpoint.open(checkpoint), source, out / MODEL, report)
    return {
        "tensors": done.tensors,
        "bytes": done.bytes_written,
        "quant_algo": done.quant_algo,
        "kv_cache_quant_algo": done.kv_cache_quant_algo,
        "folded_norms": done.folded_norms,
    }
