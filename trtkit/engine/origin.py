"""Where a product comes from and what it is for, as its manifest says; beside the key, which decides alone."""

from __future__ import annotations

import contextlib
import platform
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import trtkit
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.support import RTX_SMS
from trtkit.catalog.trtllm import IMAGES, NEWEST, PROFILES
from trtkit.contract import ContractFile
from trtkit.plan.preflight.target import TRTLLM_BACKENDS
from trtkit.plan.types import Plan

_PACKAGES = ("numpy", "ml_dtypes", "safetensors", "numba")
"""Packages that conversions compute or write with."""


@dataclass(frozen=True)
class Origin:
    """One build."""

    contract: dict[str, Any]
    """``path``, ``name``, and ``set``: what the command line changed in it."""
    source: dict[str, Any]
    """``name`` as the contract has it, and the SHA-256 of each ``files`` entry."""
    plan: dict[str, Any]
    """The resolved plan with its numbers."""
    target: dict[str, Any]
    """``backend``, ``gpu``, ``sm``; release line (``trtllm``), and ``image`` with the exact ``release``, TensorRT and
    driver that the catalog has for it; None where the back end has none. What built the engine is among the facts."""
    flags: dict[str, Any]
    """Options of the compiler that the contract gives."""
    tools: dict[str, str]
    """Versions of everything that made it."""


def origin_of(
    file: ContractFile, plan: Plan, source: Mapping[str, str], versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the origin of a build's products as plain data; ``source`` maps files to digests."""
    contract = file.contract
    path = str(file.path.resolve())
    return asdict(
        Origin(
            contract={"path": path, "name": contract.name, "set": list(file.overrides)},
            source={"name": contract.model.source, "files": dict(source)},
            plan=asdict(plan),
            target=_target(plan, contract.engine.trtllm),
            flags=dict(contract.engine.build_flags),
            tools=_tools() | dict(versions),
        )
    )


def _tools() -> dict[str, str]:
    """Return the versions of what writes checkpoints, as far as it is installed."""
    found = {"trtkit": trtkit.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def build_command(origin: Mapping[str, Any], changes: Mapping[str, str]) -> str:
    """Return the command that builds the same contract with other values of some keys."""
    contract = origin.get("contract") or {}
    kept = [each for each in contract.get("set", ()) if each.partition("=")[0] not in changes]
    settings = [*kept, *(f"{key}={value}" for key, value in changes.items())]
    words = ["trtkit", "build", contract.get("path", "CONTRACT")]
    return shlex.join([*words, *(word for each in settings for word in ("--set", each))])


def _target(plan: Plan, line: str | None) -> dict[str, Any]:
    gpu = GPUS.get(plan.gpu or "")
    profile = PROFILES[line or NEWEST] if gpu and plan.backend in TRTLLM_BACKENDS else None
    image = IMAGES[profile.images[-1]] if profile else None
    return {
        "backend": plan.backend,
        "gpu": plan.gpu,
        "sm": gpu.sm if gpu else None,
        "trtllm": profile.line if profile else None,
        "image": image.tag if image else None,
        "release": image.release if image else None,
        "tensorrt": image.tensorrt if image else None,
        "driver": image.driver if image else None,
        # What an engine of several GPUs has code for.
        "sms": [sm for sm in plan.target.sms if sm in RTX_SMS] if plan.target else [],
        "machine": platform.machine(),
    }
