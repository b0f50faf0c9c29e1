"""What the end of a builder means, and what to do about it."""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from trtkit.engine.tensorrt.child import Ended
from trtkit.errors import EnvironmentLacks, StageError, TrtkitError

_SHELL = 128
"""What containers and shells add to the number of the signal that ended their child."""
_SENT = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU)
"""Signals that somebody sends; the others are of faults in the program itself."""
_DOCKER_FAILED = 125
_SHOWN_CHARS = 300


class Ending(str, enum.Enum):
    """Why a builder ended."""

    DONE = "done"
    STOPPED = "stopped"
    BAD_ARGUMENT = "bad argument"
    HOST_MEMORY = "host memory"
    KILLED = "killed"
    GPU_MEMORY = "GPU memory"
    WRONG_GPU = "wrong GPU"
    NO_GPU = "no GPU"
    DISK_FULL = "disk full"
    CHECKPOINT = "checkpoint"
    NOT_STARTED = "not started"
    CRASHED = "crashed"
    FAILED = "failed"


_FIXES: dict[Ending, str] = {
    Ending.STOPPED: "set engine.trtllm to the line that is installed, or build with --in-container",
    Ending.BAD_ARGUMENT: "the installed release is not engine.trtllm: set that, or build with --in-container",
    Ending.HOST_MEMORY: "build on a machine with more memory",
    Ending.KILLED: "see who ended it (`dmesg`, the job's limits of memory and time)",
    Ending.GPU_MEMORY: "stop what else runs on the GPU (`nvidia-smi`), or lower engine.limits.max_num_tokens and "
    "max_batch_size",
    Ending.WRONG_GPU: "build on the GPU that engine.gpu names, or choose a format that this one has: `trtkit plan`",
    Ending.NO_GPU: "a build needs a GPU that it can see: check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and the driver",
    Ending.DISK_FULL: "free space where the store is, or set TRTKIT_HOME to another disk",
    Ending.CHECKPOINT: "run `trtkit verify` on the checkpoint; build again with --cache redo if it says no",
    Ending.NOT_STARTED: "start the docker daemon, and install the NVIDIA container toolkit",
    Ending.CRASHED: "read the end of the log; a newer release of the same line may have the fix",
    Ending.FAILED: "read the end of the log",
}

_SAID: tuple[tuple[Ending, str], ...] = (
    (Ending.BAD_ARGUMENT, r"error: (unrecognized arguments|argument .*|the following arguments)"),
    (Ending.DISK_FULL, r"No space left on device|Disk quota exceeded"),
    (Ending.GPU_MEMORY, r"CUDA out of memory|OutOfMemoryError|Cuda Runtime \(out of memory\)"),
    (Ending.GPU_MEMORY, r"Requested amount of GPU memory|CUDA_ERROR_OUT_OF_MEMORY"),
    (Ending.WRONG_GPU, r"no kernel image is available|not supported on SM|[Uu]nsupported SM"),
    (Ending.NO_GPU, r"no NVIDIA driver|no CUDA-capable device|driver version is insufficient|No CUDA GPUs"),
    # With no GPU in sight the number of workers becomes 0.
    (Ending.NO_GPU, r"max_workers must be greater than 0"),
    (Ending.CHECKPOINT, r"[Rr]equired but not provided|unexpected keyword argument|shape mismatch"),
    (Ending.CHECKPOINT, r"SafetensorError|HeaderTooLarge|InvalidHeader|incomplete metadata"),
    (Ending.HOST_MEMORY, r"MemoryError|Cannot allocate memory|std::bad_alloc"),
)
_WORKER_SIGNAL = re.compile(r"\bon signal (\d+)")
_FAULT = re.compile(r"Segmentation fault|SIGSEGV|Bus error|SIGBUS|Aborted|SIGABRT|Illegal instruction|SIGILL")
_WORKER_GONE = re.compile(r"BrokenProcessPool|terminated abruptly")
"""A worker's end, as mpirun, a handler of faults and the process pool tell of it."""
_REASON = re.compile(r"Error\b|error:|\[E\]|assert|failed", re.IGNORECASE)


@dataclass(frozen=True)
class Verdict:
    """An ending with the line that says so."""

    ending: Ending
    line: str


def classify(ended: Ended) -> Verdict:
    """Tell endings apart: by the signal, then by what the log says, then by the exit code."""
    if ended.stopped:
        return Verdict(Ending.STOPPED, ended.stopped)
    if ended.code == 0:
        return Verdict(Ending.DONE, "")
    return next(_reasons(ended))


def _reasons(ended: Ended) -> Iterator[Verdict]:
    number, line = _signal(ended)
    gone = _find(_WORKER_GONE, ended) if number is None else ""
    if number in _SENT or gone:
        yield _killed(ended, number, line or gone)
    if ended.code == _DOCKER_FAILED and ended.argv[0] == "docker":
        yield Verdict(Ending.NOT_STARTED, _last(ended))
    for ending, pattern in _SAID:
        found = [line for line in ended.tail if re.search(pattern, line)]
        if found:
            yield Verdict(ending, found[-1].strip())
    if number is not None:
        yield Verdict(Ending.CRASHED, line)
    yield Verdict(Ending.FAILED, _last(ended))


def error_of(ended: Ended) -> TrtkitError | None:
    """Return the error that a child's end is, with its fix; None for a good one."""
    verdict = classify(ended)
    if verdict.ending is Ending.DONE:
        return None
    how = f"exit code {ended.code}" if ended.code >= 0 else f"signal {-ended.code}"
    if verdict.ending is Ending.STOPPED:
        how = "stopped"
    message = f"{ended.argv[0]} ended ({how}) after {ended.seconds:.0f} s: {verdict.ending.value}"
    message += f": {verdict.line[:_SHOWN_CHARS]}" if verdict.line else ""
    lacks = verdict.ending in {Ending.NO_GPU, Ending.NOT_STARTED, Ending.DISK_FULL, Ending.STOPPED}
    kind = EnvironmentLacks if lacks else StageError
    hint = _FIXES[verdict.ending]
    if verdict.ending in {Ending.HOST_MEMORY, Ending.KILLED} and "--workers" in ended.argv:
        hint = f"set engine.build_flags.workers to 1: ranks one after another need less memory; or {hint}"
    return kind(message, path=ended.log_file, hint=hint)


def _signal(ended: Ended) -> tuple[int | None, str]:
    """Return the signal that ended the child or one of its workers, and what says so; None where nothing does."""
    worker = _find(_WORKER_SIGNAL, ended)
    if found := _WORKER_SIGNAL.search(worker):
        return int(found[1]), worker
    number = -ended.code if ended.code < 0 else ended.code - _SHELL
    if number in set(signal.Signals):
        return number, f"{signal.Signals(number).name}{_uncounted(ended, number)}"
    fault = _find(_FAULT, ended)
    return (signal.SIGSEGV, fault) if fault and _find(_WORKER_GONE, ended) else (None, "")


def _uncounted(ended: Ended, number: int) -> str:
    is_kill = number == signal.SIGKILL and not ended.oom_kills
    return ", and the kernel has not counted it as out of memory" if is_kill else ""


def _find(pattern: re.Pattern[str], ended: Ended) -> str:
    return next((line.strip() for line in reversed(ended.tail) if pattern.search(line)), "")


def _killed(ended: Ended, number: int | None, line: str) -> Verdict:
    if ended.oom_kills > 0 and number in (signal.SIGKILL, None):
        return Verdict(Ending.HOST_MEMORY, "the kernel killed it: the machine's memory was full")
    return Verdict(Ending.KILLED, line)


def _last(ended: Ended) -> str:
    """Return the last line that sounds like a reason, or the last one."""
    lines = [line.strip() for line in ended.tail if line.strip()]
    return next((line for line in reversed(lines) if _REASON.search(line)), lines[-1] if lines else "")
