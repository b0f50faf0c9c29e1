"""One build: its commands, on this machine or in the release's container."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtkit.engine.tensorrt.argv import build_argv, refit_argv, target_of
from trtkit.engine.tensorrt.gpus import Device
from trtkit.plan.types import Plan

STRIPPED = "stripped"
"""Folder of the engine without weights, beside the files that have them."""
PROFILES = "BUILDER_FORCE_NUM_PROFILES"
"""Variable that changes what the builder makes."""
_CHECKPOINT, _ENGINE, _LORA = Path("/checkpoint"), Path("/engine"), Path("/lora")
_CACHES = ("input_timing_cache", "output_timing_cache")
_STACK_BYTES = 64 << 20
_ENV = {"HOME": "/tmp", "USER": "trtkit", "PYTHONUNBUFFERED": "1"}  # noqa: S108 - the container's own


@dataclass(frozen=True)
class Job:
    """What is built from what; all folders are this machine's."""

    plan: Plan
    checkpoint: Path
    out: Path
    adapters: tuple[Path, ...] = ()
    """LoRA adapters; the first one gives the configuration."""
    in_container: bool = False
    mpirun: bool = False
    """Whether ranks are built by processes of mpirun, and not by the builder's own workers."""

    @property
    def strips(self) -> bool:
        """Whether the engine is built without weights, and gets them in a second step."""
        return target_of(self.plan).build_flags.get("strip_plan") is True

    @property
    def container(self) -> str:
        """Name of the container: who is interrupted has to find it again."""
        return f"trtkit-{hashlib.sha256(str(self.out).encode()).hexdigest()[:12]}"

    def commands(self, devices: Sequence[Device] = ()) -> list[tuple[str, ...]]:
        """Return the commands in order, for the given devices: all that there are where none is given."""
        if not self.in_container:
            return self._steps(len(devices))
        inside = replace(
            self,
            in_container=False,
            checkpoint=_CHECKPOINT,
            out=_ENGINE,
            adapters=tuple(_LORA / str(index) for index in range(len(self.adapters))),
        )
        return [(*self._docker(devices), *step) for step in inside.commands(devices)]

    def _steps(self, devices: int) -> list[tuple[str, ...]]:
        """Return the builder's commands; processes without a GPU of their own would end with an error."""
        world = target_of(self.plan).ranks.world
        at_once = min(world, devices or world)
        built = self.out / STRIPPED if self.strips else self.out
        workers = at_once if at_once > 1 and not self.mpirun else None
        build = build_argv(self.plan, self.checkpoint, built, adapters=self.adapters, workers=workers)
        if self.mpirun:
            # Containers run as root, which Open MPI refuses unless it is told.
            build = ("mpirun", "--allow-run-as-root", "-n", str(at_once), *build)
        return [build, refit_argv(self.checkpoint, built, self.out)] if self.strips else [build]

    def _docker(self, devices: Sequence[Device]) -> tuple[str, ...]:
        """Return the command up to the image: no network, the caller's own user, only the folders that it needs."""
        named = ",".join(each.uuid for each in devices)
        mounts = [_mount(self.checkpoint, _CHECKPOINT, "readonly"), _mount(self.out, _ENGINE)]
        mounts += [_mount(path, _LORA / str(index), "readonly") for index, path in enumerate(self.adapters)]
        mounts += [
            _mount(folder, folder) for folder in sorted({path.parent for path in self.caches.values()})
        ]
        env = _ENV | ({PROFILES: os.environ[PROFILES]} if PROFILES in os.environ else {})
        options = [
            ("--name", self.container),
            # Docker reads the value as CSV, in which a list needs quotes.
            ("--gpus", f'"device={named}"' if named else "all"),
            ("--network", "none"),
            ("--ipc", "host"),
            ("--ulimit", "memlock=-1"),
            ("--ulimit", f"stack={_STACK_BYTES}"),
            ("--user", f"{os.getuid()}:{os.getgid()}"),
            # The image has no such user, and Python asks for its name and home.
            *(("--env", f"{name}={value}") for name, value in env.items()),
            ("--workdir", _ENV["HOME"]),
            *(("--mount", mount) for mount in mounts),
        ]
        words = (word for option in options for word in option)
        return ("docker", "run", "--rm", "--init", *words, target_of(self.plan).image or "")

    @property
    def caches(self) -> dict[str, Path]:
        """Files of timing caches, by flag."""
        flags = target_of(self.plan).build_flags
        return {name: Path(str(flags[name])) for name in _CACHES if flags.get(name)}


def _mount(source: Path, target: Path, *options: str) -> str:
    """Return a bind mount as docker reads it: one line of CSV, in which paths may have colons and commas."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(
        ["type=bind", f"source={source}", f"target={target}", *options]
    )
    return line.getvalue()
