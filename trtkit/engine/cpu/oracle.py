"""Next-token logits of one sequence: what the pipeline computes and does not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Oracle:
    """The engine's model compiled a second time, with a plain state instead of pages. Made when first needed."""

    def __init__(self, model_file: Path, properties: Mapping[str, Any]) -> None:
        import openvino as ov

        core = ov.Core()
        model = core.read_model(model_file)
        _keep_last_row(model)
        self._compiled = core.compile_model(model, "CPU", dict(properties))

    def open(self) -> OracleSession:
        """Return a session for one sequence."""
        return OracleSession(self._compiled.create_infer_request())


class OracleSession:
    """One sequence that only grows."""

    def __init__(self, infer_request: Any) -> None:
        self._request = infer_request
        self._num_seen = 0

    def next_logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits ``(vocab,)`` after ``tokens``, which extend those of the call before."""
        new = np.asarray([tokens[self._num_seen :]], dtype=np.int64)
        positions = np.arange(self._num_seen, len(tokens), dtype=np.int64)[None]
        self._num_seen = len(tokens)
        inputs = {
            "input_ids": new,
            "attention_mask": np.ones((1, len(tokens)), dtype=np.int64),
            "position_ids": positions,
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        logits = self._request.infer(inputs)["logits"]
        return np.array(logits[0, -1], dtype=np.float32)


def _keep_last_row(model: Any) -> None:
    """Project the last position only: 2048 positions of a 49k vocabulary would be 400 MB of logits."""
    from openvino import opset13 as op

    projection = model.output("logits").get_node()
    while projection.get_type_name() != "MatMul":  # a cap on the logits may follow it
        projection = projection.input_value(0).get_node()
    last = op.gather(
        projection.input_value(0), op.constant(np.array([-1], np.int64)), op.constant(np.array(1, np.int64))
    )
    projection.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()
