"""An engine folder that holds a graph with slots, and how its ``config.json`` is read back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.graph.spec import MODEL_FILE, CacheSize, GraphSpec
from trtkit.engine.inflight.limits import Limits
from trtkit.errors import InputError
from trtkit.plan.kv import ALIGNMENT_BYTES, slot_unit_tokens
from trtkit.plan.memory import DTYPE_BYTES

GRAPH_BACKENDS = ("onnx", "rtx")
_HINT = "build it with `trtkit build` and engine.backend: onnx or rtx"


@dataclass(frozen=True)
class SlotFolder:
    """What a graph was made for."""

    path: Path
    backend: str
    limits: Limits
    spec: GraphSpec
    cache: CacheSize
    threads: int | None
    """Of the CPU; None: one core stays with Triton and the proxy."""
    engine: str | None
    """File that was compiled from the graph; None where there is only the graph."""
    engine_sms: tuple[int, ...]
    """Compute capabilities that it was compiled for."""

    @property
    def model_file(self) -> Path:
        """The graph; its weights lie beside it."""
        return self.path / MODEL_FILE

    @property
    def num_threads(self) -> int:
        """Threads on this machine."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) - 1)

    @classmethod
    def open(cls, path: Path) -> SlotFolder:
        """Read ``config.json``; raise :class:`InputError` if this is no engine of these back ends."""
        try:
            config = json.loads((path / CHECKPOINT_CONFIG).read_text(encoding="utf-8"))
            if config["backend"] not in GRAPH_BACKENDS:
                message = f"engine is for back end {config['backend']!r}, not {' or '.join(GRAPH_BACKENDS)}"
                raise InputError(message, path=path, hint=_HINT)
            folder = _read(path, config)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"not an engine folder: {error!r}", path=path, hint=_HINT) from error
        _check(folder)
        return folder


def slot_bytes(spec: GraphSpec, cache: CacheSize) -> int:
    """Return the bytes of one slot in one cache; raise :class:`InputError` where an offset would not be aligned."""
    element, (_, heads, tokens, head_size) = DTYPE_BYTES[spec.dtype], spec.cache_shape(cache, 1)
    size = heads * tokens * head_size * element
    if size % ALIGNMENT_BYTES:
        unit = slot_unit_tokens(num_kv_heads=heads, head_size=head_size, element_bytes=element)
        message = f"a slot takes {size} bytes of a cache, which is no multiple of {ALIGNMENT_BYTES}"
        raise InputError(message, hint=f"make max_seq_len a multiple of {unit}, and build again")
    return size


def _read(path: Path, config: Mapping[str, Any]) -> SlotFolder:
    model, runtime, spec = config["pretrained_config"], config["runtime"], GraphSpec(**config["graph"])
    limits = Limits.read(config)
    # A slot's last block may be a part of one.
    limits = replace(limits, kv_blocks=spec.slots * limits.blocks_for(spec.capacity_tokens))
    return SlotFolder(
        path=path,
        backend=config["backend"],
        limits=limits,
        spec=spec,
        cache=CacheSize(model["num_hidden_layers"], model["num_key_value_heads"], model["head_size"]),
        threads=runtime.get("threads"),
        engine=runtime.get("engine"),
        engine_sms=tuple(runtime.get("engine_sms", ())),
    )


def _check(folder: SlotFolder) -> None:
    """Raise :class:`InputError` where the graph and the limits contradict each other."""
    spec, limits = folder.spec, folder.limits
    wrong = {
        "its graph is the paged form, the runner has slots": spec.paged,
        "its graph gives the logits of all positions, the runner wants one": spec.all_logits,
        f"max_batch_size is {limits.max_batch_size}, the graph has {spec.slots} slots": (
            limits.max_batch_size != spec.slots
        ),
        f"max_seq_len is {limits.max_seq_len}, a slot has {spec.capacity_tokens} tokens": (
            limits.max_seq_len > spec.capacity_tokens
        ),
    }
    if said := [message for message, holds in wrong.items() if holds]:
        raise InputError("; ".join(said), path=folder.path / CHECKPOINT_CONFIG, hint=_HINT)
