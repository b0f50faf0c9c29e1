"""TensorRT and the driver: an engine runs on the TensorRT that built it, and on no driver older than its CUDA needs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from trtkit.catalog.trtllm import IMAGES, PROFILES, Image, image_reference
from trtkit.flow.against.target import Target
from trtkit.plan.preflight.target import TRTLLM_BACKENDS

RTX = "rtx"
COMPILED = ("tensorrt", RTX)
"""Back ends whose engines TensorRT compiled; trtkit has none compiled version-compatible."""
ON_GPUS = (*TRTLLM_BACKENDS, RTX)
TENSORRT, DRIVER = "TensorRT", "driver"
_FOR_RTX = "for RTX "
_NUMBERS = re.compile(r"\d+(?:\.\d+)+", re.ASCII)


def with_software(have: Target, origin: Mapping[str, Any]) -> Target:
    """Return what an engine was built for, with the TensorRT that built it and the oldest driver that runs it.

    What the manifest planned counts where that release built it; the catalog's image of the release otherwise.
    """
    if have.backend == RTX:
        compiler = _numbers((origin.get("tools") or {}).get("tensorrt_rtx"))
        return replace(have, tensorrt=f"{_FOR_RTX}{compiler}" if compiler else None)
    if have.backend not in TRTLLM_BACKENDS:
        return have
    planned = origin.get("target") or {}
    image = _image_with(have.line, have.release)
    found = {name: getattr(image, name, None) for name in ("tensorrt", "driver")}
    if have.release and have.release == planned.get("release"):
        found |= {name: value for name in found if (value := _numbers(planned.get(name)))}
    if have.backend not in COMPILED or not have.release:
        found["tensorrt"] = None
    return replace(have, tensorrt=found["tensorrt"], driver=found["driver"])


def software_pairs(have: Target, target: Target) -> dict[str, tuple[str | None, str | None]]:
    """Return what an engine needs and what the target has, the same where that will do; only of what both say."""
    needs, has = have.tensorrt, target.tensorrt
    found: dict[str, tuple[str | None, str | None]] = {}
    if needs and has:
        found[TENSORRT] = (needs, needs if _is_same(needs, has) else has)
    needs, has = have.driver, target.driver
    if needs and has:
        found[DRIVER] = (needs, has if _is_older(has, needs) else needs)
    return found


def backend_for(target: Target) -> str | None:
    """Return the back end whose engines a target's TensorRT loads; None where it says none."""
    if target.tensorrt is None:
        return None
    return RTX if target.tensorrt.startswith(_FOR_RTX) else COMPILED[0]


def fix_of(command: str, have: Target, target: Target, differing: Collection[str]) -> str:
    """Return what to do about differences; ``command`` builds for the target, in an image with what is asked for."""
    image = image_for(target) if target.release or target.tensorrt or target.driver else None
    if backend_for(target) == RTX:
        built = f"{command}  # with tensorrt-rtx-cu13 {str(target.tensorrt).removeprefix(_FOR_RTX)}"
    elif image is None and (target.tensorrt or DRIVER in differing):
        built = ""
    else:
        built = f"{command}  # in {image_reference(image.tag)}" if image else command
    needs = {TENSORRT: f"use TensorRT {have.tensorrt}", DRIVER: f"install driver {have.driver} or newer"}
    there = " and ".join(text for name, text in needs.items() if name in differing)
    if built:
        return f"{there} there, or build for it: {built}" if DRIVER in differing else built
    none = "no image of TensorRT-LLM that is known goes with all that the target has"
    return f"{there} there: {none}" if there else none


def doubts(have: Target, target: Target) -> Iterator[str]:
    """Yield what the target says, and nothing says of the engine."""
    if target.tensorrt and not have.tensorrt and have.backend in COMPILED:
        yield f"does not say which TensorRT built it, and only that one loads it; target has TensorRT {target.tensorrt}"
    if target.driver and not have.driver and have.backend in ON_GPUS:
        yield f"nothing says which driver it needs; target has {target.driver}"


def image_for(target: Target) -> Image | None:
    """Return the newest image of what the target says: release, line, TensorRT, and a driver that is new enough."""
    fitting = [
        image
        for image in IMAGES.values()
        if target.line in (None, _line_of(image))
        and target.release in (None, image.release)
        and (target.tensorrt is None or _is_same(image.tensorrt, target.tensorrt))
        and not (target.driver and _is_older(target.driver, image.driver))
    ]
    return fitting[-1] if fitting else None


def line_for(target: Target) -> str | None:
    """Return the release line that a target has, or needs for its TensorRT and driver; None for any."""
    asked = target.line is None and (target.tensorrt or target.driver)
    image = image_for(target) if asked else None
    return _line_of(image) if image else target.line


def open_questions(have: Target, target: Target) -> tuple[str, ...]:
    """Return what an engine depends on and the target does not say."""
    said = target.tensorrt or (target.release and have.release)
    tensorrt = f"TensorRT ({have.tensorrt} built it)" if have.tensorrt else "TensorRT"
    driver = f"driver ({have.driver} or newer)" if have.driver else "driver"
    return (
        *([tensorrt] if have.backend in COMPILED and not said else []),
        *([driver] if have.backend in ON_GPUS and not target.driver else []),
    )


def _image_with(line: str | None, release: str | None) -> Image | None:
    """Return an image of a release; of a line, where all its images have the same in them."""
    exact = [image for image in IMAGES.values() if release and image.release == release]
    if exact:
        return exact[-1]
    # Pre-releases of 1.2 had the TensorRT and CUDA of 1.1.
    if line not in PROFILES or (release and Version(release).is_prerelease):
        return None
    images = [IMAGES[tag] for tag in PROFILES[line].images]
    alike = len({(image.tensorrt, image.driver) for image in images}) == 1
    return images[-1] if alike else None


def _line_of(image: Image) -> str:
    return next(line for line, profile in PROFILES.items() if image.tag in profile.images)


def _is_same(mine: str, theirs: str) -> bool:
    """Tell whether two versions of TensorRT are the same, as far as both say it: the catalog has no build numbers."""
    product, numbers = _split(mine)
    other, others = _split(theirs)
    shared = min(len(numbers), len(others))
    return product == other and numbers[:shared] == others[:shared]


def _is_older(driver: str, other: str) -> bool:
    return Version(driver) < Version(other)


def _numbers(value: Any) -> str | None:
    return value if isinstance(value, str) and _NUMBERS.fullmatch(value) else None


def _split(version: str) -> tuple[str, tuple[int, ...]]:
    product, _, numbers = version.rpartition(" ")
    return product, tuple(map(int, numbers.split(".")))
