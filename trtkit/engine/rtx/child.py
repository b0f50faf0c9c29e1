"""Builds a TensorRT engine from an ONNX model: a program of its own, which needs TensorRT and nothing of trtkit.

    python build_engine.py JOB.json

The job names ``module`` (``tensorrt_rtx``, or ``tensorrt`` for the GPU at hand), ``model``, ``engine``, ``sms``
(compute capabilities of an engine of ``tensorrt_rtx``), ``profiles`` (a list of ``{input: [min, opt, max]}``), and
``ask``: whether to wait for the line ``build`` on standard input once the network is read. Paths are relative to the
job's folder.

Standard output is one JSON object a line: ``network``, ``progress``, ``done`` or ``failed``. TensorRT's own messages go
to standard error.
"""

import ctypes
import importlib
import json
import mmap
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

TIDY_CPU_S = 0.08
"""CPU time between two rounds of giving memory back, each of which takes about 0.01 s."""
_PR_SET_PDEATHSIG = 1
"""Of Linux' ``prctl.h``."""
OUT = os.fdopen(os.dup(1), "w", buffering=1)
"""The real standard output: libraries that print to theirs must not come between two answers."""


class BuildError(Exception):
    """TensorRT said no."""


def say(event: str, **fields: Any) -> None:
    """Write one line."""
    print(json.dumps({"event": event, **fields}), file=OUT, flush=True)


def main(path: str) -> int:
    """Build, and return the exit status."""
    os.dup2(2, 1)
    # Files beside this one are no modules of TensorRT's.
    sys.path.pop(0)
    job: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    os.chdir(Path(path).resolve().parent)
    if job.get("ask"):
        _end_with_parent()
    try:
        build(importlib.import_module(job["module"]), job)
    except (BuildError, ImportError, OSError) as error:
        say("failed", message=f"{error}{_way_out(error, job)}", kind=type(error).__name__)
        return 1
    return 0


def _end_with_parent() -> None:
    """Have the kernel kill this process with the one that asks; if that has ended already, its answer is missing."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _way_out(error: Exception, job: dict[str, Any]) -> str:
    missing = isinstance(error, ModuleNotFoundError) and error.name == job["module"] == "tensorrt"
    return "; install it with: pip install 'tensorrt>=11'" if missing else ""


def build(trt: Any, job: dict[str, Any]) -> None:
    """Read the model, show its network, and write the engine."""
    started_s = time.monotonic()
    logger = _logger(trt)
    builder = trt.Builder(logger)
    network, parser = _parse(trt, builder, logger, job)
    say("network", version=trt.__version__, layers=_layers(network), seconds=time.monotonic() - started_s)
    if job.get("ask") and sys.stdin.readline().strip() != "build":
        return
    config = _config(trt, builder, job)
    part = job["engine"] + ".part"
    with open(part, "wb", buffering=0) as file:
        # In one piece in memory it would be there twice.
        with _tidying(Path(job["model"] + ".data").resolve()):
            writer = _writer(trt, file)
            made = builder.build_serialized_network_to_stream(network, config, writer)
        if not made or writer.failure is not None:
            os.unlink(part)
            raise writer.failure or BuildError("the builder made no engine")
        engine_bytes = file.tell()
    os.replace(part, job["engine"])
    del parser
    usage = resource.getrusage(resource.RUSAGE_SELF)
    say(
        "done",
        engine_bytes=engine_bytes,
        wall_s=time.monotonic() - started_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_rss_bytes=_peak_bytes(),
    )


def _peak_bytes() -> int:
    # Not ru_maxrss: a child begins with the peak of the process that started it.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _parse(trt: Any, builder: Any, logger: Any, job: dict[str, Any]) -> tuple[Any, Any]:
    # What every network is since TensorRT 11, whose enumeration may have lost the flag.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(job["model"]):
        found = [parser.get_error(number) for number in range(parser.num_errors)]
        raise BuildError("; ".join(f"node {each.node_name()}: {each.desc()}" for each in found))
    return network, parser


def _config(trt: Any, builder: Any, job: dict[str, Any]) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.progress_monitor = _monitor(trt)
    if job["sms"]:
        config.num_compute_capabilities = len(job["sms"])
        for number, sm in enumerate(job["sms"]):
            if not config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), number):
                raise BuildError(f"no engine can be made for SM {sm}")
    for shapes in job["profiles"]:
        profile = builder.create_optimization_profile()
        for name, (least, best, most) in shapes.items():
            profile.set_shape(name, least, best, most)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(f"no optimization profile can have these shapes: {shapes}")
    return config


def _layers(network: Any) -> list[dict[str, Any]]:
    return [_layer(network.get_layer(number)) for number in range(network.num_layers)]


def _layer(layer: Any) -> dict[str, Any]:
    """Return what a walk needs of a layer; inputs that are not there are left out."""
    inputs = [layer.get_input(number) for number in range(layer.num_inputs)]
    outputs = [layer.get_output(number) for number in range(layer.num_outputs)]
    return {
        "name": layer.name,
        "kind": layer.type.name,
        "inputs": [_tensor(each) for each in inputs if each is not None],
        "outputs": [_tensor(each) for each in outputs],
    }


def _tensor(tensor: Any) -> list[str]:
    return [tensor.name, tensor.dtype.name]


def _logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        """Writes what is worth reading to standard error."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            """Write one message."""
            if severity <= trt.ILogger.INFO:
                sys.stderr.write(f"[{severity.name}] {text}\n")

    return Logger()


def _writer(trt: Any, file: FileIO) -> Any:
    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        """Writes an engine as it is serialized, and keeps what went wrong: TensorRT goes on as if nothing had."""

        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)
            self.failure: OSError | None = None

        def write(self, data: bytes) -> int:
            """Write one part."""
            rest = memoryview(data)
            try:
                while rest and self.failure is None:
                    rest = rest[file.write(rest) :]
            except OSError as error:
                self.failure = error
            return len(data) - len(rest)

    return Writer()


@contextmanager
def _tidying(path: Path) -> Iterator[None]:
    """Give memory back while the builder works: what it has freed, and mapped weights, which can be read again.

    SmolLM2 in INT8, 221 MB of weights, peaks at about 800 MB with it, and at 999 MB where only mapped weights go.
    """
    ended = threading.Event()

    def tidy() -> None:
        libc = ctypes.CDLL(None)
        tidied_s = time.process_time()
        while not ended.wait(0.02):
            if time.process_time() < tidied_s + TIDY_CPU_S:
                continue
            tidied_s = time.process_time()
            libc.malloc_trim(0)
            for start, size in _mapped(path):
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)

    worker = threading.Thread(target=tidy, daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


def _mapped(path: Path) -> Iterator[tuple[int, int]]:
    """Yield address and size of a file's mappings, none of which is written to."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if line.endswith(str(path)):
            start, end = (int(each, 16) for each in line.split(maxsplit=1)[0].split("-"))
            yield start, end - start


def _monitor(trt: Any) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Tells how many steps of the phases that have begun are done."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.done, self.total = 0, 0

        # TensorRT gives these arguments by name.
        def phase_start(self, phase_name: str, parent_phase: Any, num_steps: int) -> None:  # noqa: ARG002
            """Count a phase's steps in."""
            self.total += num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:  # noqa: ARG002
            """Count a step; the answer is whether to go on."""
            self.done += 1
            say("progress", phase=phase_name, done=self.done, total=self.total)
            return True

        def phase_finish(self, phase_name: str) -> None:
            """Nothing ends with a phase."""

    return Monitor()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
