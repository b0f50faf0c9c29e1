"""Engine folders with a graph before the quality gate."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import yaml

pytest.importorskip("transformers")

from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.engine.slots.conftest import write_engine
from tests.flow.conftest import contract, model, tiny_llama  # noqa: F401 - fixtures
from trtkit.engine.slots.executor import Batch
from trtkit.engine.slots.reader import GraphReader, with_every_position
from trtkit.errors import InputError, StageError

pytest.importorskip("onnxruntime")

TOKENS = np.random.default_rng(9).integers(0, 400, 110)


def test_every_position_has_the_logits_that_serving_would_give(slots_dir, client):
    """110 tokens in pieces of 48, and in serving one by one."""
    logits = GraphReader(slots_dir).logits(TOKENS)
    assert logits.shape == (110, 400)
    for at, token in enumerate(TOKENS.tolist()):
        (served,) = client.engine._executor.run(Batch("decode", 0, [[token]], [at]))
        np.testing.assert_allclose(logits[at], served, atol=1e-3)


def test_sequences_share_nothing(slots_dir):
    reader = GraphReader(slots_dir)
    first = reader.logits(TOKENS[:60])
    reader.logits(TOKENS[::-1])
    assert np.array_equal(reader.logits(TOKENS[:60]), first)


def test_a_graph_for_a_gpu_is_read_here_too(checkpoint, slots_plan, slots_dir, tmp_path):
    """With the rounding of float16."""
    plan = replace(slots_plan, backend="rtx", dtype="float16")
    folder = write_engine(checkpoint, tmp_path / "rtx", plan)
    expected = GraphReader(slots_dir).logits(TOKENS)
    error = np.abs(GraphReader(folder).logits(TOKENS) - expected).mean()
    assert 0 < error < 0.005 * expected.std()


def test_what_no_slot_has_room_for_is_refused(slots_dir):
    with pytest.raises(InputError, match="a sequence of 301 tokens, a slot has 300"):
        GraphReader(slots_dir).logits(np.zeros(301, np.int64))


def test_a_graph_of_someone_else_is_refused(tmp_path):
    graph = onnx.helper.make_graph([], "g", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    with pytest.raises(StageError, match="0 nodes choose positions"):
        with_every_position(tmp_path / "model.onnx")


@pytest.mark.parametrize("weights", ["none", "int8-wo"])
def test_the_gate_judges_the_graph(trtkit, contract, model, tmp_path, weights):  # noqa: F811
    path = contract(weights, gate={})
    content = yaml.safe_load(path.read_text())
    content["engine"] |= {"backend": "onnx", "kv_cache": {"enable_block_reuse": False}}
    path.write_text(yaml.safe_dump(content))
    code, _, err = trtkit("build", path)
    assert code == 0, err
    (gate,) = (tmp_path / "home" / "gate").glob("*/report.json")
    engine = next((tmp_path / "home" / "compile").glob("*/config.json")).parent
    few = ("--samples", "3", "--sample-tokens", "40")
    code, out, err = trtkit("gate", model, engine, *few, "--output", "json")
    report, before = json.loads(out), json.loads(gate.read_text())
    assert (code, report["executor"]) == (0, "ONNX Runtime, the graph that the engine is made of"), err
    kl, expected = (each["measures"][0]["interval"]["value"] for each in (report, before))
    assert kl == pytest.approx(expected, rel=0.1, abs=1e-5)
