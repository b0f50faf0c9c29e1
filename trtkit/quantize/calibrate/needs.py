"""Memory and disk that a calibration takes, known before anything is read."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.catalog.architectures.architecture import Arrange
from trtkit.errors import EnvironmentLacks
from trtkit.plan.host import HEAD_BYTES, LIBRARIES_BYTES, gigabytes, int4_bytes, layer_bytes, step_bytes
from trtkit.plan.memory import DTYPE_BYTES
from trtkit.quantize.calibrate.layers import ModelLayers
from trtkit.quantize.calibrate.samples import SampleSet
from trtkit.quantize.calibrate.state import folder_of
from trtkit.quantize.histogram import BINS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Needs:
    """Bytes, by what takes them."""

    layer_bytes: int
    activation_bytes: int
    int4_bytes: int
    disk_bytes: int

    @property
    def memory_bytes(self) -> int:
        """All of it but the libraries."""
        return self.layer_bytes + max(self.activation_bytes + self.int4_bytes, HEAD_BYTES)


def estimate(layers: ModelLayers, samples: SampleSet, group_size: int | None) -> Needs:
    """Return what layers and samples take."""
    config, width = layers.config, DTYPE_BYTES["bfloat16" if layers.config.dtype == "bfloat16" else "float32"]
    states = 2 * samples.tokens * config.hidden_size * width
    return Needs(
        layer_bytes(config),
        step_bytes(config, samples.longest_tokens),
        int4_bytes(config) if group_size else 0,
        # What layers gave is there twice at the end: layer by layer, and in the file that is made of it.
        states + 2 * file_bytes(layers, group_size),
    )


def file_bytes(layers: ModelLayers, group_size: int | None) -> int:
    """Return the size of the tensors that a calibration writes."""
    config = layers.config
    # Largest magnitudes of K and V in the cache and of K before it, and how often the cache kept which.
    total = 4 * config.num_layers * (3 * config.num_kv_heads * config.head_size + BINS)
    for tensor in layers.mapped:
        if tensor.target.rule.is_linear and tensor.target.layer is not None:
            is_transposed = tensor.target.rule.arrange is Arrange.TRANSPOSED
            for source in tensor.plain:
                width, rows = source.shape if is_transposed else source.shape[::-1]
                total += 4 * (width + 2 * rows)
                total += rows * width // 2 + 4 * (rows * width // group_size + width) if group_size else 0
    return total + 4 * (config.hidden_size + 2 * config.vocab_size)


def check_memory(needs: Needs, device: torch.device, out: Path) -> None:
    """Refuse what would be killed on the way; what an earlier run has left on disk is used again, or goes.

    Raises:
        EnvironmentLacks: Memory or disk do not suffice.
    """
    free = _free_bytes(device)
    needed = needs.memory_bytes + LIBRARIES_BYTES
    if free is not None and needed > free:
        parts = (
            f"one decoder layer {gigabytes(needs.layer_bytes)}, "
            f"activations {gigabytes(needs.activation_bytes)}, "
            f"INT4 search {gigabytes(needs.int4_bytes)}, libraries {gigabytes(LIBRARIES_BYTES)}"
        )
        message = (
            f"calibration takes about {gigabytes(needed)} of memory ({parts}); {gigabytes(free)} are free"
        )
        raise EnvironmentLacks(message, hint="use a machine with more memory, or a smaller --max-length")
    existing = next(folder for folder in out.absolute().parents if folder.exists())
    left = folder_of(out)
    held = sum(each.stat().st_size for each in left.glob("*"))
    space = shutil.disk_usage(existing).free + held
    if needs.disk_bytes > space:
        message = f"the calibration takes {gigabytes(needs.disk_bytes)} on disk; {gigabytes(space)} are free"
        message += f", with those that an earlier one left in {left}" if held else ""
        raise EnvironmentLacks(message, path=out, hint="free space, or use fewer --samples")


def give_back_memory() -> None:
    """Return freed memory to the system.

    glibc keeps what a layer freed in pieces: 12 layers of 17 MB left 60 MB behind, and no less with every further one.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # other C libraries have no such function
        trim(0)


def _free_bytes(device: torch.device) -> int | None:
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None
