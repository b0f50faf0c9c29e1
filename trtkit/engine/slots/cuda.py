"""One CUDA device: a stream, and memory on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from trtkit.errors import EnvironmentLacks, StageError

Address = int
_CUDA = "CUDA: "
_DRIVER = "driver 580 or later"
"""What CUDA 13 asks for, which TensorRT for RTX and the bindings are of."""
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


class Device:
    """The first device. Everything runs on one stream, in order."""

    def __init__(self) -> None:
        self._cuda = _runtime()
        self.stream: Any = _first(self._cuda, self._cuda.cudaStreamCreate)
        self._buffers: list[Address] = []

    @property
    def sm(self) -> int:
        """Compute capability, 89 for 8.9."""
        return _sm(self._cuda)

    def allocate(self, num_bytes: int) -> Address:
        """Return memory that holds zeros."""
        address = int(self._do(self._cuda.cudaMalloc(num_bytes)))
        self._buffers.append(address)
        self.clear(address, num_bytes)
        return address

    def clear(self, address: Address, num_bytes: int) -> None:
        """Fill memory with zeros."""
        self._do(self._cuda.cudaMemsetAsync(address, 0, num_bytes, self.stream))

    def upload(self, address: Address, values: npt.NDArray[Any]) -> None:
        """Copy an array to the device; it may be changed afterwards."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._do(self._cuda.cudaMemcpyAsync(address, values.ctypes.data, values.nbytes, kind, self.stream))

    def download(self, address: Address, values: npt.NDArray[Any]) -> None:
        """Fill an array from the device, once all before it is done."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._do(self._cuda.cudaMemcpyAsync(values.ctypes.data, address, values.nbytes, kind, self.stream))
        self._do(self._cuda.cudaStreamSynchronize(self.stream))

    def close(self) -> None:
        """Give everything back."""
        for address in self._buffers:
            self._cuda.cudaFree(address)
        self._buffers.clear()
        self._cuda.cudaStreamDestroy(self.stream)

    def _do(self, answer: tuple[Any, ...]) -> Any:
        return _result(self._cuda, answer)


def find_sm() -> int:
    """Return the compute capability of the first device, 89 for 8.9; nothing is put on it.

    Raises:
        EnvironmentLacks: There is no device, or no package or driver to ask for one.
    """
    cuda = _runtime()
    _first(cuda, cuda.cudaGetDeviceCount)
    return _sm(cuda)


def _sm(cuda: Any) -> int:
    attributes = cuda.cudaDeviceAttr
    names = (attributes.cudaDevAttrComputeCapabilityMajor, attributes.cudaDevAttrComputeCapabilityMinor)
    major, minor = (int(_result(cuda, cuda.cudaDeviceGetAttribute(name, 0))) for name in names)
    return 10 * major + minor


def _runtime() -> Any:
    try:
        from cuda.bindings import runtime
    except ModuleNotFoundError:
        message = "the back end rtx needs the package cuda-python"
        raise EnvironmentLacks(message, hint="pip install 'trtkit[rtx]'") from None
    return runtime


def _first(cuda: Any, call: Callable[[], tuple[Any, ...]]) -> Any:
    """Return what the first call of a process gives, which is the one that finds no device."""
    try:
        return _result(cuda, call())
    except (StageError, RuntimeError) as error:  # the bindings' own, where there is no driver
        said = str(error).removeprefix(_CUDA)
        hint = (
            "serve it where `nvidia-smi` shows a GPU and that driver; engine.backend: onnx runs it on the CPU"
        )
        message = f"there is no CUDA device: {said}; it needs {_DRIVER}, found {_found_driver()}"
        raise EnvironmentLacks(message, hint=hint) from None


def _found_driver() -> str:
    """Return the version of the loaded kernel module, as the first line of its file has it."""
    try:
        line = _DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "none"
    version = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", line)
    return version[0] if version else "one of unknown version"


def _result(cuda: Any, answer: tuple[Any, ...]) -> Any:
    """Return what a call of the CUDA runtime gave; raise :class:`StageError` where it failed."""
    error, *results = answer
    if error != cuda.cudaError_t.cudaSuccess:
        said = cuda.cudaGetErrorString(error)[1]
        raise StageError(f"{_CUDA}{said.decode() if isinstance(said, bytes) else said}")
    return results[0] if results else None
