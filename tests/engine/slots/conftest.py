"""The tiny Llama of the CPU back end's tests, as OpenVINO's engine and as a graph with slots."""

import json
from dataclasses import replace

import pytest

from tests.engine_cpu.conftest import running, tiny_config, tiny_plan, tiny_tensors, write_checkpoint
from trtkit.engine.cpu.compile import compile_engine
from trtkit.engine.graph.write import write_graph
from trtkit.engine.rtx.config import graph_config, spec_of
from trtkit.engine.serving import open_engine

SLOTS = 6


def write_engine(checkpoint, out, plan):
    """Write the engine folder of the back end onnx."""
    out.mkdir()
    spec = spec_of(plan)
    write_graph(checkpoint, out, spec)
    pretrained = json.loads((checkpoint / "config.json").read_text())
    config = graph_config(pretrained, plan, spec, {"threads": plan.threads})
    (out / "config.json").write_text(json.dumps(config))
    return out


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    config = tiny_config(dtype="float32")
    return write_checkpoint(tmp_path_factory.mktemp("slots") / "checkpoint", config, tiny_tensors(config))


@pytest.fixture(scope="session")
def slots_plan():
    return replace(tiny_plan(max_batch_size=SLOTS, max_num_tokens=48), backend="onnx")


@pytest.fixture(scope="session")
def slots_dir(checkpoint, slots_plan):
    return write_engine(checkpoint, checkpoint.parent / "onnx", slots_plan)


@pytest.fixture(scope="session")
def client(slots_dir):
    """The graph with slots."""
    with running(slots_dir, open_engine=open_engine) as client:
        yield client


@pytest.fixture(scope="session")
def openvino(checkpoint):
    """OpenVINO's engine from the same checkpoint."""
    out = checkpoint.parent / "cpu"
    out.mkdir()
    compile_engine(checkpoint, out, tiny_plan())
    with running(out, open_engine=open_engine) as client:
        yield client
