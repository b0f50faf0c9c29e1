"""What ends mean where the double cannot bring them about: the kernel's counter, a shell's and a container's codes."""

from pathlib import Path

import pytest

from trtkit.engine.tensorrt.child import Ended
from trtkit.engine.tensorrt.ending import Ending, classify, error_of


def ended(code, *tail, program="trtllm-build", oom_kills=0):
    return Ended((program,), code, 1.0, tail, Path("log"), oom_kills)


@pytest.mark.parametrize(
    ("end", "ending"),
    [
        (ended(0, "error: unrecognized arguments"), Ending.DONE),
        (ended(-9, oom_kills=1), Ending.HOST_MEMORY),
        (ended(137, program="docker", oom_kills=1), Ending.HOST_MEMORY),
        (ended(137, program="docker"), Ending.KILLED),
        (ended(1, "concurrent.futures.process.BrokenProcessPool: ...", oom_kills=1), Ending.HOST_MEMORY),
        (ended(137, "mpirun noticed that process rank 1 exited on signal 9 (Killed)."), Ending.KILLED),
        (ended(1, "MemoryError: std::bad_alloc"), Ending.HOST_MEMORY),
        (
            ended(125, "docker: Error response from daemon: no such runtime", program="docker"),
            Ending.NOT_STARTED,
        ),
        (ended(125, "something else"), Ending.FAILED),
        (ended(1, "RuntimeError: Found no NVIDIA driver on your system."), Ending.NO_GPU),
        (ended(2, "trtllm-build: error: argument --gemm_plugin: invalid choice: 'x'"), Ending.BAD_ARGUMENT),
        (ended(1, "OSError: [Errno 122] Disk quota exceeded"), Ending.DISK_FULL),
        (ended(1, "safetensors_rust.SafetensorError: Error while deserializing header"), Ending.CHECKPOINT),
        (ended(-6), Ending.CRASHED),
        (ended(139, program="docker"), Ending.CRASHED),
        (ended(134, "terminate called", oom_kills=1), Ending.CRASHED),
        (
            ended(139, "mpirun noticed that process rank 1 exited on signal 11 (Segmentation fault)."),
            Ending.CRASHED,
        ),
        (ended(1, "Fatal Python error: Segmentation fault", "BrokenProcessPool: A process"), Ending.CRASHED),
        (ended(143), Ending.KILLED),
        (ended(1), Ending.FAILED),
    ],
)
def test_ends_are_told_apart(end, ending):
    assert classify(end).ending is ending


def test_a_failure_without_a_known_reason_quotes_the_line_that_sounds_like_one():
    end = ended(1, "AssertionError: Engine building failed", "at rank 0", "bye")
    assert classify(end).line == "AssertionError: Engine building failed"


@pytest.mark.parametrize(("argv", "proposed"), [((), False), (("--workers", "4"), True)])
def test_fewer_workers_are_proposed_where_there_are_several(argv, proposed):
    error = error_of(Ended(("trtllm-build", *argv), -9, 1.0, (), Path("log"), 1))
    assert error is not None
    assert ("set engine.build_flags.workers to 1" in (error.hint or "")) is proposed
