"""The written file in ONNX Runtime, with the caches of its slots or blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from trtkit.engine.graph.spec import (
    BLOCK_TABLES,
    INPUT_IDS,
    LAST,
    LOGITS,
    ONNX_RUNTIME_SETTINGS,
    POSITION_IDS,
    WRITE_INDICES,
    GraphFacts,
    GraphSpec,
)

Array = np.ndarray[Any, Any]


class Session:
    """One engine whose rows take tokens; what no row has written is no zero, so that looking at it shows."""

    def __init__(self, facts: GraphFacts, spec: GraphSpec) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        for key, value in ONNX_RUNTIME_SETTINGS.items():
            options.add_session_config_entry(key, value)
        self.session = ort.InferenceSession(str(facts.model), options, providers=["CPUExecutionProvider"])
        self.spec, self.names = spec, spec.cache_names(facts.cache.num_layers)
        shape = spec.cache_shape(facts.cache, spec.slots)
        self.caches = {past: np.full(shape, 9, spec.dtype) for past, _ in self.names}
        self.lengths = np.zeros(spec.slots, np.int64)
        blocks = np.random.default_rng(1).permutation(np.arange(1, spec.blocks))
        self.tables = blocks.reshape(spec.slots, -1) if spec.paged else None

    def step(self, rows: Sequence[int], tokens: Array, last: Sequence[int] | None = None) -> Array:
        """Give each row its new tokens (batch, seq); return the logits."""
        tokens, picked = np.asarray(tokens, np.int64), list(rows)
        lengths = self.lengths[picked]
        positions = lengths[:, None] + np.arange(tokens.shape[1])
        feed = {
            INPUT_IDS: tokens,
            POSITION_IDS: positions,
            **self._cache_inputs(picked, int(positions.max())),
        }
        if not self.spec.all_logits:
            feed[LAST] = np.array([tokens.shape[1] - 1] * len(picked) if last is None else last, np.int64)
        logits, *present = self.session.run([LOGITS, *(name for _, name in self.names)], feed)
        for (past, _), value in zip(self.names, present, strict=True):
            if self.tables is None:
                self.caches[past][picked] = value
            else:
                self.caches[past] = value
        self.lengths[picked] += tokens.shape[1]
        return logits

    def _cache_inputs(self, rows: list[int], longest: int) -> dict[str, Array]:
        if self.tables is None:
            caches = {past: cache[rows] for past, cache in self.caches.items()}
            return caches | {WRITE_INDICES: self.lengths[rows]}
        # No more blocks than are needed, and the reserved one where a row has none.
        width = longest // self.spec.tokens_per_block + 1
        return self.caches | {BLOCK_TABLES: self.tables[rows, :width]}
