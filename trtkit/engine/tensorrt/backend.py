"""The engine back end of TensorRT-LLM, as the build sees it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trtkit.checkpoint.progress import Progress
from trtkit.engine.tensorrt.argv import BUILDER, target_of
from trtkit.engine.tensorrt.child import Ended, run
from trtkit.engine.tensorrt.ending import error_of
from trtkit.engine.tensorrt.folder import check_engine, files_of
from trtkit.engine.tensorrt.gpus import Device, find_devices, visible
from trtkit.engine.tensorrt.job import PROFILES, STRIPPED, Job
from trtkit.engine.tensorrt.release import builder_release, image_release, other_release
from trtkit.errors import EnvironmentLacks
from trtkit.plan import Plan

LOG_WORDS = "log in "
"""How the first line begins that :attr:`Builder.tell` is told."""
_BANNER = re.compile(r"TensorRT-LLM version: (\d+\.\d+)")
"""What the builder says first, before it reads anything."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REMOVE_TIMEOUT_S = 60.0


def _ignore(_: str) -> None: ...


@dataclass(frozen=True)
class Builder:
    """How ``trtllm-build`` is run, which changes nothing of what it makes."""

    in_container: bool = False
    mpirun: bool = False
    tell: Callable[[str], None] = _ignore
    """Takes each line of its log as it comes."""


@dataclass(frozen=True)
class TensorrtBackend:
    """``trtllm-build``, here or in NVIDIA's container."""

    builder: Builder = field(default_factory=Builder)
    adapters: tuple[Path, ...] = ()

    def files(self, plan: Plan, /) -> tuple[str, ...]:
        """Return the files of a folder that serves: an engine for each rank."""
        return files_of(plan)

    def versions(self) -> Mapping[str, str]:
        """Return what changes engines beside the plan, which has the release line."""
        return {PROFILES: os.environ[PROFILES]} if PROFILES in os.environ else {}

    def unfit(self, facts: Mapping[str, Any], plan: Plan) -> str:
        """Return why an engine with these facts is not what would be built; empty where that is not known."""
        return other_release(facts.get("trtllm"), self._release(plan)) if "trtllm" in facts else ""

    def _release(self, plan: Plan) -> str | None:
        """Return the release that would build, which is asked once."""
        if self.builder.in_container:
            return image_release(target_of(plan).image)
        return self._release_here

    @cached_property
    def _release_here(self) -> str | None:
        return builder_release()

    def job(self, checkpoint: Path, out: Path, plan: Plan) -> Job:
        """Return the build as it would be run."""
        return Job(
            plan,
            checkpoint.resolve(),
            out.resolve(),
            self.adapters,
            self.builder.in_container,
            self.builder.mpirun,
        )

    def compile(
        self, checkpoint: Path, out: Path, plan: Plan, report: Progress, log: Path
    ) -> Mapping[str, Any]:
        """Build the engine, and compare it with the plan.

        Raises:
            EnvironmentLacks: There is no builder, or no GPU of the plan's kind.
            StageError: The builder failed, or built something else; its log stays.
        """
        del report  # nobody knows how far the builder is
        job = self.job(checkpoint, out, plan)
        check_here(job)
        devices = find_devices(target_of(plan).gpu, os.environ)
        log.unlink(missing_ok=True)
        self.builder.tell(f"{LOG_WORDS}{log}")
        ended = [self._run(job, argv, devices, log) for argv in job.commands(devices)]
        if job.strips:
            _carry_adapters(out)
        facts = check_engine(job, out)
        if job.strips:
            check_engine(job, out / STRIPPED)
        return {
            **facts,
            "argv": [list(each.argv) for each in ended],
            "seconds": round(sum(each.seconds for each in ended), 1),
            "gpus": [str(each) for each in devices],
            **({"image_digest": _image_digest(job)} if job.in_container else {}),
        }

    def _run(self, job: Job, argv: Sequence[str], devices: Sequence[Device], log: Path) -> Ended:
        """Run one command in an empty folder: builders leave a timing cache where they stand."""
        env = {**os.environ, **visible(devices), "PYTHONUNBUFFERED": "1"}
        with tempfile.TemporaryDirectory(prefix="trtkit-build-") as folder:
            try:
                ended = run(argv, log_file=log, cwd=Path(folder), env=env, on_line=self._watch(job.plan))
            finally:
                if job.in_container:
                    _remove_container(job.container)
        if error := error_of(ended):
            raise error
        return ended

    def _watch(self, plan: Plan) -> Callable[[str], str]:
        """Return what looks at each line: an engine of another release line would be built for nothing."""
        planned = target_of(plan).trtllm

        def look(line: str) -> str:
            self.builder.tell(line)
            said = _BANNER.search(line)
            if said is None or said[1] == planned:
                return ""
            return f"this is TensorRT-LLM {said[1]}, the plan is for {planned}"

        return look


def check_here(job: Job) -> None:
    """Make sure that the programs are here.

    Raises:
        EnvironmentLacks: One is not; the hint has the command that does without.
    """
    needed = ["docker"] if job.in_container else [*(["mpirun"] if job.mpirun else []), BUILDER]
    missing = [name for name in needed if shutil.which(name) is None]
    if not missing:
        _check_caches(job)
        return
    hint = "install it, or build on a machine that has it"
    if missing[-1] == BUILDER:
        here = replace(job, out=Path.cwd() / "engine", in_container=True)
        hint = "add --in-container where docker and the GPU are; it would run this (with a folder for /engine):\n"
        hint += "\n".join(f"    {shlex.join(each)}" for each in here.commands())
    raise EnvironmentLacks(f"there is no {' and no '.join(missing)} on PATH", hint=hint)


def _check_caches(job: Job) -> None:
    """Make sure that timing caches can be used: the builder notices in the end, and throws the engine away."""
    for name, path in job.caches.items():
        mode, what = (os.R_OK, "read") if name.startswith("input") else (os.W_OK, "written")
        is_place = path.parent.is_dir() and os.access(path.parent, mode | os.X_OK)
        if not is_place or (path.exists() and not (path.is_file() and os.access(path, mode))):
            hint = f"make its folder, or change engine.build_flags.{name}"
            raise EnvironmentLacks(f"the timing cache cannot be {what} here", path=path, hint=hint)


def _remove_container(name: str) -> None:
    """End a container that outlived its client; one that ended by itself is gone already."""
    command = ("docker", "rm", "--force", name)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, capture_output=True, timeout=_REMOVE_TIMEOUT_S, check=False)


def _image_digest(job: Job) -> str | None:
    """Return the digest of the image that built the engine; None where docker knows none of a registry."""
    image = target_of(job.plan).image or ""
    command = ("docker", "image", "inspect", "--format", '{{join .RepoDigests " "}}', image)
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_REMOVE_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _DIGEST.search(told.stdout)
    return found[0] if found else None


def _carry_adapters(out: Path) -> None:
    """Take LoRA adapters along: refitting copies engines and ``config.json``, and nothing else."""
    adapters = out / STRIPPED / "lora"
    if adapters.is_dir():
        shutil.copytree(adapters, out / "lora")
