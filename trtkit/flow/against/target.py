"""A machine to run on, as people name it: a GPU, an SM, a release, an image, a TensorRT, a driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from trtkit.catalog.gpus import GPUS
from trtkit.catalog.support import FIRST_SM, LAST_SM
from trtkit.catalog.trtllm import IMAGES, PROFILES
from trtkit.errors import InputError
from trtkit.plan.preflight.target import near_gpus
from trtkit.plan.types import Plan

CPU = "cpu"
ON_CPUS = (CPU, "onnx")
"""Back ends whose engines run on this kind of machine."""
_SM = re.compile(r"(?:sm[ _-]?)?(\d{1,2})\.?(\d)", re.ASCII)
_IMAGE = re.compile(
    r"(?:(?:[\w.-]+/)*tritonserver:)?(\d{2}\.\d{2})(?:-trtllm-python-py3)?(?:@(sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_SOFTWARE = re.compile(r"(tensorrt|tensorrt[_-]rtx|driver)[ =]v?(\d+(?:\.\d+)+)", re.ASCII)
_EXACT_PARTS = 3
"""Numbers of a version of TensorRT without which it is not known which one that is."""


@dataclass(frozen=True)
class Target:
    """A machine, as far as it is known; None for what is not."""

    backend: str | None = None
    gpu: str | None = None
    sm: int | None = None
    line: str | None = None
    """Release line of TensorRT-LLM."""
    sms: tuple[int, ...] = ()
    """All that an engine has code for, where that is more than one."""
    release: str | None = None
    """Exact version of TensorRT-LLM, as PEP 440 has it."""
    image_digest: str | None = None
    tensorrt: str | None = None
    """Version of TensorRT, as ``for RTX 1.7.1`` of the other product of that name."""
    driver: str | None = None
    """Version of the machine's driver; of what is built for it, the oldest that will do."""

    def __str__(self) -> str:
        words = [
            "the CPU" if self.backend in ON_CPUS else "",
            GPUS[self.gpu].title if self.gpu in GPUS else self.gpu or "",
            f"SM {' and '.join(map(str, self.sms or (self.sm,)))}" if self.sm else "",
            f"TensorRT-LLM {self.release or f'{self.line}.x'}" if self.line else "",
            f"image {self.image_digest[:19]}" if self.image_digest else "",
            f"TensorRT {self.tensorrt}" if self.tensorrt else "",
            f"driver {self.driver}" if self.driver else "",
        ]
        return ", ".join(filter(None, words)) or f"the back end {self.backend}"

    @classmethod
    def of_plan(cls, plan: Plan) -> Target:
        """Return the machine that a plan is for."""
        if plan.target is None:
            return cls(plan.backend)
        gpu = plan.target.gpu
        return cls(plan.backend, gpu.name, gpu.sm, plan.target.trtllm, plan.target.sms)


def parse_target(names: Sequence[str]) -> Target:
    """Return the machine that several names describe together.

    Raises:
        InputError: One of them is no GPU, compute capability, release or image that is known, or two disagree.
    """
    found: dict[str, Any] = {}
    for name in names:
        for key, value in _facts(name).items():
            if found.setdefault(key, value) != value:
                raise InputError(f"--against {' '.join(names)}: {found[key]} and {value} cannot both be")
    if CPU in found.values() and len(found) > 1:
        other = next(value for key, value in found.items() if key != "backend")
        raise InputError(f"--against {' '.join(names)}: {CPU} and {other} cannot both be")
    return Target(**found)


def release_facts(text: str) -> dict[str, Any]:
    """Return line and exact release that a version names, the release only where it says one; {} for no version."""
    try:
        version = Version(text.removeprefix("trtllm").lstrip("-v")) if text.isascii() else None
    except InvalidVersion:
        return {}
    if version is None or len(version.release) < 2:
        return {}
    line = "{}.{}".format(*version.release)
    # A local part (+cu12) says where it was compiled, not what it is.
    return {"line": line} if version.public == line else {"line": line, "release": version.public}


def _facts(name: str) -> dict[str, Any]:
    text = name.strip().lower()
    if text == CPU:
        return {"backend": CPU}
    if text in GPUS:
        return {"gpu": text, "sm": GPUS[text].sm}
    if (match := _SM.fullmatch(text)) and FIRST_SM <= (sm := int(match[1] + match[2])) <= LAST_SM:
        return {"sm": sm}
    if (match := _IMAGE.fullmatch(text)) and match[1] in IMAGES:
        return _of_image(match[1], match[2])
    if (facts := release_facts(text)) and facts["line"] in PROFILES:
        return facts
    if match := _SOFTWARE.fullmatch(text):
        return _of_software(name, match[1], match[2])
    near = near_gpus(text) if text else []
    meant = f"did you mean {', '.join(near)}? " if near else ""
    known = f"a GPU ({', '.join(GPUS)}), an SM (89), a release ({', '.join(PROFILES)}, or 1.2.1)"
    hint = f"{meant}name {known}, an image of TensorRT-LLM ({list(IMAGES)[-1]}), "
    known += "tensorrt=10.14.1, tensorrt-rtx=1.7.1, driver=590.44, or cpu"
    raise InputError(f"--against {name}: not known", hint=hint)


def _of_software(name: str, product: str, version: str) -> dict[str, Any]:
    if product == "driver":
        return {"driver": version}
    if version.count(".") < _EXACT_PARTS - 1:
        hint = "name it exactly, for instance tensorrt=10.14.1: an engine runs on no other"
        raise InputError(f"--against {name}: that may be several versions", hint=hint)
    return {"tensorrt": version if product == "tensorrt" else f"for RTX {version}"}


def _of_image(tag: str, digest: str | None) -> dict[str, Any]:
    line = next(line for line, profile in PROFILES.items() if tag in profile.images)
    image = IMAGES[tag]
    found = {"line": line, "release": image.release, "image_digest": digest, "tensorrt": image.tensorrt}
    return {key: value for key, value in found.items() if value is not None}
