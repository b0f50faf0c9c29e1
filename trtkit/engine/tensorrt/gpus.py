"""Which GPUs a build may run on: an engine is for the compute capability that built it, and does not say which."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtkit.catalog.gpus import Gpu
from trtkit.errors import EnvironmentLacks

_SMI = ("nvidia-smi", "--query-gpu=index,uuid,compute_cap,name", "--format=csv,noheader")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Device:
    """One GPU of this machine."""

    index: str
    uuid: str
    sm: int | None
    """None where the driver does not say: a board that is lost, too old, or virtual."""
    name: str

    def __str__(self) -> str:
        return f"{self.name} (SM {self.sm if self.sm is not None else 'unknown'})"

    def is_named(self, names: Sequence[str]) -> bool:
        """Return whether one of the names, indices or beginnings of UUIDs, is this GPU's."""
        return any(
            name == self.index or (name[:4] == "GPU-" and self.uuid.startswith(name)) for name in names
        )


def find_devices(gpu: Gpu, env: Mapping[str, str]) -> tuple[Device, ...]:
    """Return this machine's GPUs of the target's compute capability, of those that the environment leaves visible.

    Raises:
        EnvironmentLacks: There is none.
    """
    devices = _list()
    names = [name.strip() for name in env[_VISIBLE].split(",")] if _VISIBLE in env else None
    visible = [each for each in devices if names is None or each.is_named(names)]
    fitting = tuple(each for each in visible if each.sm == gpu.sm)
    if fitting:
        return fitting
    have = ", ".join(map(str, visible)) or ("none that is visible" if devices else "none")
    message = f"the engine is for {gpu.title} (SM {gpu.sm}), and this machine's GPUs are: {have}"
    hint = "build on such a machine, or set engine.gpu to what is here; an engine runs on no other SM"
    raise EnvironmentLacks(message, hint=hint)


def visible(devices: Sequence[Device]) -> dict[str, str]:
    """Return the environment in which CUDA sees these devices and no other; by UUID, which no order changes."""
    return {_VISIBLE: ",".join(each.uuid for each in devices)}


def _list() -> list[Device]:
    if shutil.which(_SMI[0]) is None:
        message = "there is no nvidia-smi here, so no GPU to build an engine on"
        raise EnvironmentLacks(message, hint="build on a machine with the GPU of the contract and its driver")
    try:
        found = subprocess.run(
            _SMI, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stdout", "") or str(error)).strip()
        raise EnvironmentLacks(f"nvidia-smi failed: {said}", hint="repair the driver") from error
    return [_device(line) for line in found.stdout.splitlines() if line.count(",") >= 3]


def _device(line: str) -> Device:
    index, uuid, capability, name = (word.strip() for word in line.split(",", 3))
    said = re.fullmatch(r"(\d+)\.(\d)", capability)
    return Device(index, uuid, int(said[1] + said[2]) if said else None, name)
