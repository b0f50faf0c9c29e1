"""Memory and disk that a calibration takes, known before anything is read."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import EnvironmentLacks
from trtkit.plan.host import HEAD_BYTES, LIBRARIES_BYTES, int4_bytes, layer_bytes, step_bytes
from trtkit.plan.memory import DTYPE_BYTES
from trtkit.quantize.calibrate.layers import ModelLayers
from trtkit.quantize.calibrate.samples import SampleSet

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
    return Needs(
        layer_bytes(config),
        step_bytes(config, samples.longest_tokens),
        int4_bytes(config) if group_size else 0,
        2 * samples.tokens * config.hidden_size * width,
    )


def check_memory(needs: Needs, device: torch.device, out: Path) -> None:
    """Refuse what would be killed on the way.

    Raises:
        EnvironmentLacks: Memory or disk do not suffice.
    """
    free = _free_bytes(device)
    needed = needs.memory_bytes + LIBRARIES_BYTES
    if free is not None and needed > free:
        parts = (
            f"one decoder layer {needs.layer_bytes / 1e9:.1f}, activations {needs.activation_bytes / 1e9:.1f}, "
            f"INT4 search {needs.int4_bytes / 1e9:.1f}, libraries {LIBRARIES_BYTES / 1e9:.1f}"
        )
        message = (
            f"calibration takes about {needed / 1e9:.1f} GB of memory ({parts}); {free / 1e9:.1f} are free"
        )
        raise EnvironmentLacks(message, hint="use a machine with more memory, or a smaller --max-length")
    existing = next(folder for folder in out.absolute().parents if folder.exists())
    space = shutil.disk_usage(existing).free
    if needs.disk_bytes > space:
        message = f"hidden states take {needs.disk_bytes / 1e9:.1f} GB on disk and {space / 1e9:.1f} are free"
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
