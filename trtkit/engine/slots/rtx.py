"""TensorRT for RTX as the executor. Written against its API and not run on a device yet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtkit.engine.graph.spec import (
    INPUT_IDS,
    LAST,
    LOGITS,
    POSITION_IDS,
    WRITE_INDICES,
    GraphSpec,
    Phase,
)
from trtkit.engine.slots.cuda import Address, Device
from trtkit.engine.slots.executor import Batch
from trtkit.engine.slots.folder import SlotFolder, slot_bytes
from trtkit.engine.slots.here import check_folder
from trtkit.engine.store import default_root
from trtkit.errors import EnvironmentLacks, StageError


class RtxExecutor:
    """The compiled engine of a folder with a context for each profile, and one buffer for each cache.

    A cache is input and output at the same address, as TensorRT's KV cache update demands; the address of a slot is
    an offset into it. ``cuda_graphs`` lets the runtime capture a step as one CUDA graph and play it again.
    """

    def __init__(self, folder: SlotFolder, *, cuda_graphs: bool = False) -> None:
        trt, spec = _tensorrt_rtx(), folder.spec
        check_folder(folder)
        self._slot_bytes = slot_bytes(spec, folder.cache)
        self._vocab_size = folder.limits.vocab_size
        self._device = Device()
        allocate = self._device.allocate
        widest = 8 * max(spec.slots, spec.chunk_tokens)
        self._inputs = {name: allocate(widest) for name in (INPUT_IDS, POSITION_IDS, WRITE_INDICES, LAST)}
        self._logits = allocate(4 * spec.slots * self._vocab_size)
        self._caches = {
            names: allocate(self._slot_bytes * spec.slots)
            for names in spec.cache_names(folder.cache.num_layers)
        }
        self._cache_shape = spec.cache_shape(folder.cache, 1)[1:]
        self._engine = _Engine(trt, folder.path / str(folder.engine), self._device, cuda_graphs=cuda_graphs)
        self._warm_up(spec)

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Run one batch."""
        rows, inputs = len(batch.tokens), batch.inputs()
        for name, values in inputs.items():
            self._device.upload(self._inputs[name], values)
        shapes = {name: values.shape for name, values in inputs.items()}
        addresses = self._inputs | {LOGITS: self._logits}
        for (past, present), cache in self._caches.items():
            shapes[past] = (rows, *self._cache_shape)
            addresses[past] = addresses[present] = cache + batch.first * self._slot_bytes
        self._engine.run(batch.phase, shapes, addresses)
        logits = np.empty((rows, self._vocab_size), np.float32)
        self._device.download(self._logits, logits)
        return logits

    def clear(self, slot: int) -> None:
        """Fill the slot's part of each cache with zeros."""
        for cache in self._caches.values():
            self._device.clear(cache + slot * self._slot_bytes, self._slot_bytes)

    def close(self) -> None:
        """Keep what was compiled for this device, and give its memory back."""
        try:
            self._engine.keep()
        finally:
            self._device.close()

    def _warm_up(self, spec: GraphSpec) -> None:
        """Run both phases at their largest: what is compiled at the first run is not for a request to wait for."""
        self.run(Batch(Phase.PREFILL, 0, [[0] * spec.chunk_tokens], [0]))
        self.run(Batch(Phase.DECODE, 0, [[0]] * spec.slots, [0] * spec.slots))
        self._engine.keep()


class _Engine:
    """A deserialized engine, with what the JIT made of it for this device."""

    def __init__(self, trt: Any, file: Path, device: Device, *, cuda_graphs: bool) -> None:
        self._device = device
        self._logger = trt.Logger(trt.Logger.WARNING)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(file.read_bytes())
        if self._engine is None:
            message = f"TensorRT for RTX {trt.__version__} cannot load it on SM {device.sm}"
            raise StageError(message, path=file, hint="build it again with the version that is to run it")
        self._config = self._engine.create_runtime_config()
        if cuda_graphs:
            self._config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        self._jit_file = default_root() / "jit" / f"tensorrt-rtx-{trt.__version__}.cache"
        self._jit = self._config.create_runtime_cache()
        if self._jit_file.is_file():
            # What another driver or GPU has left is not taken, and replaced at the end.
            self._jit.deserialize(self._jit_file.read_bytes())
        self._config.set_runtime_cache(self._jit)
        self._contexts = {phase: self._open(index) for index, phase in enumerate(Phase)}

    def run(self, phase: Phase, shapes: dict[str, tuple[int, ...]], addresses: dict[str, Address]) -> None:
        """Queue one step on the device's stream."""
        context = self._contexts[phase]
        done = [context.set_input_shape(name, shape) for name, shape in shapes.items()]
        done += [context.set_tensor_address(name, address) for name, address in addresses.items()]
        if not (all(done) and context.execute_async_v3(int(self._device.stream))):
            raise StageError(f"TensorRT for RTX could not run a {phase.value} step; its log says why")

    def keep(self) -> None:
        """Keep the JIT's products for the next start."""
        self._jit_file.parent.mkdir(parents=True, exist_ok=True)
        staged = self._jit_file.with_name(f".{self._jit_file.name}.{os.getpid()}")
        try:
            staged.write_bytes(self._jit.serialize())
            staged.replace(self._jit_file)
        finally:
            staged.unlink(missing_ok=True)

    def _open(self, profile: int) -> Any:
        context = self._engine.create_execution_context(self._config)
        if context is None or not context.set_optimization_profile_async(profile, int(self._device.stream)):
            raise StageError("TensorRT for RTX cannot make a context: is there enough memory on the device?")
        return context


def _tensorrt_rtx() -> Any:
    try:
        import tensorrt_rtx
    except ModuleNotFoundError:
        message = "the back end rtx needs the package tensorrt-rtx"
        raise EnvironmentLacks(message, hint="pip install 'trtkit[rtx]'") from None
    return tensorrt_rtx
