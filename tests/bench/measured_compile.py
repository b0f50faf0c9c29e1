"""One compilation that measures itself: ``measured_compile.py REQUEST`` prints one line of JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from trtkit.checkpoint.progress import silent
from trtkit.engine.graph.spec import GraphSpec
from trtkit.engine.graph.write import write_graph
from trtkit.engine.rtx.compiler import MODULE, compile_model
from trtkit.engine.rtx.elsewhere import job_for
from trtkit.engine.rtx.walk import Layer, walk


def main(checkpoint: str, out: str, sms: list[int]) -> None:
    """Write the graph and compile it as ``trtkit build`` does, and print what each of the two cost."""
    spec = GraphSpec(slots=8, capacity_tokens=2048, chunk_tokens=512, dtype="float16")
    before, start_bytes, started_s = _cpu_s(), _memory_bytes("VmRSS"), time.perf_counter()
    graph = write_graph(Path(checkpoint), Path(out), spec)
    cost = {
        "graph_cpu_s": _cpu_s() - before,
        "graph_wall_s": time.perf_counter() - started_s,
        "graph_rss_bytes": _memory_bytes("VmHWM") - start_bytes,
        "graph_bytes": graph.data_bytes,
    }
    job = Path(out, "job.json")
    job.write_text(json.dumps({**job_for(spec, graph.cache, module=MODULE, sms=tuple(sms)), "ask": True}))

    def check(layers: Sequence[Layer]) -> None:
        walk(layers, graph)

    done = compile_model(job, Path(out, "compile.log"), check, silent)
    mine = {"own_cpu_s": _cpu_s(), "own_peak_rss_bytes": _memory_bytes("VmHWM")}
    sys.stdout.write(json.dumps({**cost, **mine, **asdict(done)}) + "\n")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _memory_bytes(name: str) -> int:
    # Not ru_maxrss: a child begins with the peak of the process that started it.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
