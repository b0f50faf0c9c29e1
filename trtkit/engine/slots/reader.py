"""Whole sequences through the graph of an engine folder, for who judges it: the logits of every position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from trtkit.engine.graph.spec import LOGITS, Phase
from trtkit.engine.slots.executor import Batch
from trtkit.engine.slots.folder import SlotFolder
from trtkit.engine.slots.ort import OrtExecutor
from trtkit.errors import EnvironmentLacks, InputError, StageError


class GraphReader:
    """ONNX Runtime with the very graph and weights of the folder, also of one that was compiled for a GPU."""

    def __init__(self, path: Path) -> None:
        self._folder = SlotFolder.open(path)
        self._executor = OrtExecutor(self._folder, with_every_position(self._folder.model_file))

    def logits(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the logits ``(length, vocab)`` of a new sequence, run in pieces as prompts are.

        Raises:
            InputError: A slot has no room for it.
        """
        spec, ids = self._folder.spec, tokens.tolist()
        if len(ids) > spec.capacity_tokens:
            message = f"a sequence of {len(ids)} tokens, a slot has {spec.capacity_tokens}"
            raise InputError(message, path=self._folder.path, hint="read shorter samples")
        pieces = [
            self._executor.run(Batch(Phase.PREFILL, 0, [ids[at : at + spec.chunk_tokens]], [at]))[0]
            for at in range(0, len(ids), spec.chunk_tokens)
        ]
        return np.concatenate(pieces)


def with_every_position(file: Path) -> bytes:
    """Return a graph that does not choose a position before its head: logits become (batch, seq, vocab).

    Only nodes are changed; the weights stay in the file beside it.
    """
    try:
        import onnx
    except ModuleNotFoundError:
        hint = "pip install 'trtkit[onnx]'"
        raise EnvironmentLacks("to judge a graph needs the package onnx", hint=hint) from None
    model = onnx.load(str(file), load_external_data=False)
    graph = model.graph
    choosers = [node for node in graph.node if node.op_type == "GatherND"]
    if len(choosers) != 1:
        message = f"{len(choosers)} nodes choose positions, one was expected"
        raise StageError(message, path=file, hint="build the engine again")
    (chooser,) = choosers
    for node in graph.node:
        node.input[:] = [chooser.input[0] if name == chooser.output[0] else name for name in node.input]
    graph.node.remove(chooser)
    (logits,) = (output for output in graph.output if output.name == LOGITS)
    shape = logits.type.tensor_type.shape
    vocab_size = shape.dim[-1].dim_value
    shape.dim[-1].dim_param = "seq"
    shape.dim.add(dim_value=vocab_size)
    return bytes(model.SerializeToString())
