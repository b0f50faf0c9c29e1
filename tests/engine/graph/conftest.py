"""Tiny checkpoints, written as graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engine_cpu.conftest import tiny_config, tiny_tensors, write_checkpoint
from tests.engine_cpu.formats import quantized
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.engine.graph.spec import GraphFacts, GraphSpec
from trtkit.engine.graph.write import write_graph

FORMS = [pytest.param({}, id="slots"), pytest.param({"paged": True}, id="blocks")]


class Written(NamedTuple):
    checkpoint: TrtllmCheckpoint
    spec: GraphSpec
    facts: GraphFacts

    def session(self) -> Any:
        from tests.engine.graph.session import Session  # Python 3.10 has no ONNX Runtime of this age

        return Session(self.facts, self.spec)


def small_spec(**changes: Any) -> GraphSpec:
    sizes = {
        "slots": 4,
        "capacity_tokens": 48,
        "chunk_tokens": 32,
        "dtype": "float32",
        "tokens_per_block": 16,
    }
    return GraphSpec(**(sizes | changes))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Written]:
    """Return a function that writes a tiny Llama in a format, or with changes to its config."""

    def made(
        name: str | None = None,
        edit: Any = lambda _: None,
        spec: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Written:
        config = tiny_config(**changes)
        tensors = tiny_tensors(config)
        if name is not None:
            config, tensors = quantized(name, **changes)
        edit(tensors)
        folder = write_checkpoint(tmp_path / "checkpoint", config, tensors)
        out = tmp_path / "graph"
        out.mkdir()
        asked = small_spec(**(spec or {}))
        return Written(TrtllmCheckpoint.open(folder), asked, write_graph(folder, out, asked))

    return made
