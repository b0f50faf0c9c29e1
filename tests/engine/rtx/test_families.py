"""TensorRT for RTX takes the graph of every family whose graph there is, attention and caches as layers of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("tensorrt_rtx")
pytest.importorskip("onnx")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.architectures.conftest import build  # noqa: F401 - a fixture
from tests.architectures.variants import VARIANTS
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import silent
from trtkit.checkpoint.recipe import Plain
from trtkit.engine.graph.spec import GraphSpec
from trtkit.engine.graph.write import write_graph
from trtkit.engine.rtx.compiler import MODULE, compile_model
from trtkit.engine.rtx.elsewhere import job_for
from trtkit.engine.rtx.walk import walk
from trtkit.plan.resolve import quant_plan

SPEC = GraphSpec(slots=2, capacity_tokens=48, chunk_tokens=16, dtype="float16")
REFUSED = ("gemma2", "falcon-rw", "phi3-longrope-long")
"""What no graph expresses."""
NO_KERNEL = ("smollm2",)
"""Three heads of 32 on one: the compiler has attention for 9 of 64 on 3, which is the size of the real one."""
NAMES = [name for name in VARIANTS if name not in (*REFUSED, *NO_KERNEL)]


@pytest.mark.parametrize("name", NAMES)
def test_a_family_compiles(build: Any, tmp_path: Any, name: str) -> None:  # noqa: F811 - the fixture
    source = HfCheckpoint.open(build(name).folder)
    convert(source, tmp_path / "checkpoint", dtype="float16", recipe=Plain(quant_plan("none")))
    graph = write_graph(tmp_path / "checkpoint", tmp_path, SPEC)
    job = job_for(SPEC, graph.cache, module=MODULE, sms=(80, 120))
    (tmp_path / "job.json").write_text(json.dumps(job | {"ask": True}))
    log = tmp_path / "compile.log"
    done = compile_model(tmp_path / "job.json", log, lambda layers: walk(layers, graph), silent)
    assert done.engine_bytes > 0
