"""From a TensorRT-LLM checkpoint to an engine folder with a graph, and for ``rtx`` an engine beside it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtkit.catalog.support import RTX_SMS
from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.progress import Progress
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.graph.spec import GraphFacts
from trtkit.engine.rtx.compiler import MODULE, compile_model
from trtkit.engine.rtx.config import ENGINE_FILE, graph_config, spec_of
from trtkit.engine.rtx.elsewhere import COMMAND, job_for, write_elsewhere
from trtkit.engine.rtx.walk import Layer, walk
from trtkit.plan.types import Plan

LOG_FILE = "compile.log"
_JOB_FILE = "job.json"


def split_sms(plan: Plan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the compute capabilities that get an engine, and those that get a script."""
    asked = plan.target.sms if plan.target else ()
    return tuple(sm for sm in asked if sm in RTX_SMS), tuple(sm for sm in asked if sm not in RTX_SMS)


def compile_graph(checkpoint: Path, out: Path, plan: Plan, report: Progress) -> dict[str, Any]:
    """Write the graph for ONNX Runtime on a CPU; return facts for the manifest."""
    _, facts = _write_graph(checkpoint, out, plan, report)
    _write_config(checkpoint, out, plan, {"threads": plan.threads})
    return facts


def compile_engine(checkpoint: Path, out: Path, plan: Plan, report: Progress, log: Path) -> dict[str, Any]:
    """Write the graph, and an engine for the GPUs that TensorRT for RTX knows; return facts for the manifest.

    Raises:
        StageError: The network is not what the contract says, or the compiler failed; ``log`` has its messages.
    """
    here, elsewhere = split_sms(plan)
    graph, facts = _write_graph(checkpoint, out, plan, report)
    runtime: dict[str, Any] = {"engine": None, "engine_sms": list(here), "other_sms": list(elsewhere)}
    if here:
        facts |= _build(graph, out, plan, report, log)
        runtime |= {"engine": ENGINE_FILE, "engine_bytes": facts["engine_bytes"]}
    if elsewhere:
        write_elsewhere(out, spec_of(plan), graph.cache)
        facts["command"] = COMMAND
    _write_config(checkpoint, out, plan, runtime)
    return {**facts, "engine_sms": list(here), "other_sms": list(elsewhere)}


def _write_graph(
    checkpoint: Path, out: Path, plan: Plan, report: Progress
) -> tuple[GraphFacts, dict[str, Any]]:
    from trtkit.engine.graph.write import write_graph

    started_s = time.monotonic()
    graph = write_graph(checkpoint, out, spec_of(plan), report)
    forms = Counter(form.value for form in graph.linears.values())
    facts = {
        "graph_s": time.monotonic() - started_s,
        "graph_bytes": graph.model.stat().st_size + graph.data_bytes,
        "products": dict(sorted(forms.items())),
    }
    return graph, facts


def _build(graph: GraphFacts, out: Path, plan: Plan, report: Progress, log: Path) -> dict[str, Any]:
    seen: dict[str, int] = {}
    sms, _ = split_sms(plan)

    def check(layers: Sequence[Layer]) -> None:
        seen.update(walk(layers, graph))

    job = out / _JOB_FILE
    job.write_text(json.dumps({**job_for(spec_of(plan), graph.cache, module=MODULE, sms=sms), "ask": True}))
    done = compile_model(job, log, check, report)
    job.unlink()
    log.replace(out / LOG_FILE)
    return {
        "layers": seen,
        "engine_bytes": done.engine_bytes,
        "compile_s": done.wall_s,
        "compile_cpu_s": done.cpu_s,
        "compile_peak_rss_bytes": done.peak_rss_bytes,
    }


def _write_config(checkpoint: Path, out: Path, plan: Plan, runtime: Mapping[str, Any]) -> None:
    config = graph_config(read_json(checkpoint / CHECKPOINT_CONFIG), plan, spec_of(plan), runtime)
    (out / CHECKPOINT_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
