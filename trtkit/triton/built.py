"""What an engine of TensorRT-LLM says of itself: its ``config.json``, as far as a repository depends on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.catalog.parallel import GPUS_PER_NODE
from trtkit.catalog.trtllm import LINES
from trtkit.conventions import CHECKPOINT_CONFIG


@dataclass(frozen=True)
class Built:
    """Values of one engine; None where the file does not say."""

    version: str | None
    max_batch_size: int | None
    max_beam_width: int | None
    max_seq_len: int | None
    world: int
    gpus_per_node: int
    logits_dtype: str | None
    paged_context: bool | None
    """Whether blocks of the KV cache are readable in the context phase."""
    draft_tokens: int
    managed_weights: bool
    """Whether the weights are in files of their own beside the ranks: a fast build."""

    @property
    def line(self) -> str | None:
        """The release line; None for one whose templates are not known."""
        line = ".".join((self.version or "").split(".")[:2])
        return line if line in LINES else None


def read_built(folder: Path) -> Built | None:
    """Return what is said there; None where no engine of TensorRT-LLM is, or nothing that can be read."""
    try:
        content = json.loads((folder / CHECKPOINT_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    parts = [_part(content, name) for name in ("build_config", "pretrained_config")]
    # trtkit's own engines say by which back end they are.
    if not all(parts) or "backend" in content:
        return None
    build, model = parts
    plugins, mapping = _part(build, "plugin_config"), _part(model, "mapping")
    return Built(
        version=_of(content, "version", str),
        max_batch_size=_of(build, "max_batch_size", int),
        max_beam_width=_of(build, "max_beam_width", int),
        max_seq_len=_of(build, "max_seq_len", int),
        world=_world(mapping),
        gpus_per_node=_of(mapping, "gpus_per_node", int) or GPUS_PER_NODE,
        logits_dtype=_of(model, "logits_dtype", str),
        paged_context=_of(plugins, "use_paged_context_fmha", bool),
        draft_tokens=_of(build, "max_draft_len", int) or 0,
        managed_weights=_of(plugins, "manage_weights", bool) or False,
    )


def _world(mapping: Mapping[str, Any]) -> int:
    """Return the ranks: tp x pp x cp, or what ``world_size`` says."""
    sizes = [_of(mapping, f"{kind}_size", int) or 1 for kind in ("tp", "pp", "cp")]
    return _of(mapping, "world_size", int) or sizes[0] * sizes[1] * sizes[2]


def _part(content: Any, name: str) -> Mapping[str, Any]:
    part = content.get(name) if isinstance(content, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _of(part: Mapping[str, Any], name: str, kind: type) -> Any:
    value = part.get(name)
    return value if type(value) is kind else None
