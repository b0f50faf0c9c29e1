"""What of this machine the process may use: its cores and its memory, by the narrowest limit around it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trtkit.plan import Machine
from trtkit.plan.step import Place

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def this_machine() -> Machine:
    """Return usable cores and memory."""
    cores = min([len(os.sched_getaffinity(0)), *_cgroup_cores()])
    return Machine(cores=max(1, cores), memory_bytes=host_place().memory_bytes)


def host_place() -> Place:
    """Return this machine, or the part of it that the process may use."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [("this machine", physical), *(("this container", each) for each in _cgroup_bytes())]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(("this process (ulimit -v)", soft))
    return Place(*min(limits, key=lambda limit: limit[1]))


def _cgroup_bytes() -> Iterator[int]:
    for name in ("memory.max", "memory/memory.limit_in_bytes", "memory.limit_in_bytes"):
        yield from (int(text) for text in _cgroup_texts(name) if text.isdigit())


def _cgroup_cores() -> Iterator[int]:
    """Yield whole cores of quotas such as ``150000 100000``: time and period, in microseconds."""
    for text in _cgroup_texts("cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield -(-int(quota) // int(period))


def _cgroup_texts(name: str) -> Iterator[str]:
    """Yield what the files of that name say, in the process's control group and those around it."""
    try:
        own = _OWN_CGROUP.read_text(encoding="ascii").splitlines()
    except OSError:
        return
    paths = [line.split(":", 2)[2] for line in own if line.startswith("0::")]
    folders = [_CGROUPS / path.lstrip("/") for path in paths]
    for folder in {each for found in folders for each in (found, *found.parents)}:
        with suppress(OSError):
            yield (folder / name).read_text(encoding="ascii").strip()
