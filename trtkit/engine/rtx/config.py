"""The ``config.json`` of an engine folder with a graph, and the graph that a plan asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from trtkit.engine.graph.spec import Dtype, GraphSpec
from trtkit.engine.inflight.limits import engine_config
from trtkit.plan.types import Plan

ENGINE_FILE = "model.engine"


def spec_of(plan: Plan) -> GraphSpec:
    """Return the shapes of the graph: a slot for each request, each with room for one sequence of full length."""
    limits = plan.limits
    return GraphSpec(
        slots=limits.max_batch_size,
        capacity_tokens=limits.max_seq_len,
        # A chunk is a part of one prompt, and no prompt is longer than this.
        chunk_tokens=min(limits.max_num_tokens, limits.max_input_len),
        dtype=graph_dtype(plan),
    )


def graph_dtype(plan: Plan) -> Dtype:
    """Return the data type that the graph computes in.

    ``rtx`` computes in the checkpoint's own. ``onnx`` widens to float32, which holds every value of the 16-bit types:
    ONNX Runtime has no bfloat16 kernels for CPUs, and its float16 ones are float32's with conversions around them.
    """
    dtypes: Mapping[str, Dtype] = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}
    return "float32" if plan.backend == "onnx" else dtypes[plan.dtype]


def graph_config(
    pretrained_config: Mapping[str, Any], plan: Plan, spec: GraphSpec, runtime: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the engine's ``config.json``; ``graph`` holds the fields of :class:`GraphSpec`."""
    # A slot's cache is its own.
    config = engine_config(pretrained_config, plan, runtime, enable_block_reuse=False)
    return config | {"graph": asdict(spec)}
