"""Whether this machine runs a repository's engines, found out before anything is started."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from trtkit.catalog.support import RTX_SMS
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine import installed
from trtkit.engine.installed import backend_of
from trtkit.engine.slots.cuda import find_sm
from trtkit.engine.slots.folder import SlotFolder, slot_bytes
from trtkit.errors import EnvironmentLacks, InputError


def check_repository(repository: Path) -> None:
    """Make sure that this machine has what runs a repository's engines, and the GPU of those of the back end rtx.

    Raises:
        InputError: No machine would.
        EnvironmentLacks: This one does not.
    """
    installed.check_repository(repository)
    for config in sorted(repository.glob(f"*/*/engine/{CHECKPOINT_CONFIG}")):
        if backend_of(config) == "rtx":
            check_folder(SlotFolder.open(config.parent))


def check_folder(folder: SlotFolder) -> None:
    """Make sure that this machine runs the engine of a folder; raises as :func:`check_repository` does."""
    slot_bytes(folder.spec, folder.cache)
    check_sms(folder.engine_sms if folder.engine else (), folder.path)


def check_sms(sms: Collection[int], path: Path | None = None) -> None:
    """Make sure that this machine's GPU runs an engine that is compiled for these compute capabilities.

    Raises:
        InputError: There are none: TensorRT for RTX knows no GPU that the contract names.
        EnvironmentLacks: There is no GPU here, or it is another one.
    """
    onnx = "engine.backend: onnx runs the same graph on the CPU"
    if not sms:
        message = "there is a graph, and no engine that was compiled for any GPU"
        hint = f"name a GPU that TensorRT for RTX knows in engine.targets; {onnx}"
        raise InputError(message, path=path, hint=hint)
    if (sm := find_sm()) not in sms:
        message = (
            f"the engine is compiled for SM {', '.join(map(str, sorted(sms)))}, and the GPU here is SM {sm}"
        )
        more = f"add {sm} to engine.targets and build again" if sm in RTX_SMS else "serve it on one of those"
        raise EnvironmentLacks(message, path=path, hint=f"{more}; {onnx}")
