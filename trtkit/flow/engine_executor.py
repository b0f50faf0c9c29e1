"""A compiled engine of the CPU back end as what the gate judges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt


class EngineExecutor:
    """An engine folder of the CPU back end: its model with a plain state instead of pages, and its own settings."""

    def __init__(self, folder: Path) -> None:
        import openvino as ov

        from trtkit.engine.cpu.folder import EngineFolder

        engine = EngineFolder.open(folder)
        core = ov.Core()
        self._compiled = core.compile_model(core.read_model(engine.model_file), "CPU", engine.properties)

    def logits(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the logits ``(length, vocab)``; the state is a new one for every sequence."""
        length = len(tokens)
        inputs = {
            "input_ids": tokens[None],
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(length, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        result = self._compiled.create_infer_request().infer(inputs)["logits"][0]
        return np.array(result, np.float32)
