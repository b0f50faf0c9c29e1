"""ONNX Runtime on this machine's CPU as the executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trtkit.engine.graph.spec import LOGITS, ONNX_RUNTIME_SETTINGS, Phase
from trtkit.engine.inflight.pipeline import reason
from trtkit.engine.installed import install_hint
from trtkit.engine.slots.executor import Batch
from trtkit.engine.slots.folder import SlotFolder
from trtkit.errors import EnvironmentLacks, InputError, StageError

_CPU = "CPUExecutionProvider"
_SETTINGS = {
    **ONNX_RUNTIME_SETTINGS,
    # Kernels for narrow weights give a row other last bits alone than beside others, which rounding of activations
    # makes 0.25 in SmolLM2's logits (SmoothQuant per token). Without them weights are widened once, at the start, and
    # a step of that model takes 37 ms of CPU time instead of 99, with INT8 weights only instead of 225.
    "session.disable_quant_qdq": "1",
    # Threads that spin between two steps would take the cores of Triton and the proxy.
    "session.intra_op.allow_spinning": "0",
}
_TYPES = {"float32": "tensor(float)", "float16": "tensor(float16)"}
"""That ONNX Runtime has kernels for on the CPU."""


class OrtExecutor:
    """The graph of an engine folder in an inference session, and one buffer for each cache.

    A cache is input and output at the same address, so that a step writes its tokens and copies nothing.
    ``model`` is a changed form of the graph, for the same weights.
    """

    def __init__(self, folder: SlotFolder, model: bytes | None = None) -> None:
        if folder.spec.dtype not in _TYPES:
            message = (
                f"the graph computes in {folder.spec.dtype}, for which ONNX Runtime has no kernels on a CPU"
            )
            raise InputError(message, path=folder.path, hint="set model.dtype: float16 and build again")
        self._session = _open(folder, model)
        _check(self._session, folder)
        shape = folder.spec.cache_shape(folder.cache, folder.spec.slots)
        self._caches = {
            names: np.zeros(shape, dtype=folder.spec.dtype)
            for names in folder.spec.cache_names(folder.cache.num_layers)
        }
        self._bindings: dict[tuple[int, int], Any] = {}

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Run one batch."""
        binding = self._binding(batch.first, len(batch.tokens))
        for name, values in batch.inputs().items():
            binding.bind_cpu_input(name, values)
        binding.bind_output(LOGITS, "cpu")
        self._session.run_with_iobinding(binding)
        return np.array(binding.get_outputs()[0].numpy())

    def clear(self, slot: int) -> None:
        """Fill the slot's part of each cache with zeros."""
        for cache in self._caches.values():
            cache[slot] = 0

    def close(self) -> None:
        """Do nothing: there is only memory."""

    def _binding(self, first: int, rows: int) -> Any:
        """Return a binding whose caches are those of ``rows`` slots from ``first`` on."""
        if (first, rows) not in self._bindings:
            binding = self._session.io_binding()
            binding.bind_output(LOGITS, "cpu")
            for (past, present), cache in self._caches.items():
                part = cache[first : first + rows]
                place = ("cpu", 0, part.dtype, part.shape, part.ctypes.data)
                binding.bind_input(past, *place)
                binding.bind_output(present, *place)
            self._bindings[first, rows] = binding
        return self._bindings[first, rows]


def _open(folder: SlotFolder, model: bytes | None) -> Any:
    try:
        import onnxruntime as ort
    except ModuleNotFoundError:
        message = "the back end onnx needs the package onnxruntime"
        raise EnvironmentLacks(message, hint=install_hint("onnx")) from None
    options = ort.SessionOptions()
    options.intra_op_num_threads = folder.num_threads
    options.log_severity_level = 3  # errors
    settings = {**_SETTINGS, "session.model_external_initializers_file_folder_path": str(folder.path)}
    for key, value in settings.items():
        options.add_session_config_entry(key, value)
    try:
        return ort.InferenceSession(model or str(folder.model_file), options, providers=[_CPU])
    except Exception as error:  # the binding's own classes have no common base
        message, hint = f"ONNX Runtime cannot load it: {reason(error)}", "build the engine again"
        raise StageError(message, path=folder.path, hint=hint) from error


def _check(session: Any, folder: SlotFolder) -> None:
    """Raise :class:`StageError` where the graph is not the one that ``config.json`` describes."""
    spec = folder.spec
    cache = (_TYPES[spec.dtype], spec.cache_shape(folder.cache, 1)[1:])
    names = [name for pair in spec.cache_names(folder.cache.num_layers) for name in pair]
    wanted = {**dict.fromkeys(names, cache), LOGITS: ("tensor(float)", (folder.limits.vocab_size,))}
    there = {
        each.name: (each.type, tuple(size for size in each.shape if not isinstance(size, str)))
        for each in (*session.get_inputs(), *session.get_outputs())
    }
    wrong = [
        f"{name} is {there.get(name)}, not {what}" for name, what in wanted.items() if there.get(name) != what
    ]
    unknown = there.keys() - wanted.keys() - Batch(Phase.PREFILL, 0, [[0]], [0]).inputs().keys()
    wrong += [f"{name} is unknown" for name in sorted(unknown)]
    if wrong:
        message = f"the graph is not the one of config.json: {'; '.join(wrong[:3])}"
        raise StageError(message, path=folder.path, hint="build the engine again")
