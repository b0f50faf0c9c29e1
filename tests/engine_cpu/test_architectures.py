"""The CPU back end against transformers: a tiny model of every family."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from openvino._offline_transformations import paged_attention_transformation

from tests.architectures.conftest import build  # noqa: F401 - a fixture
from tests.architectures.tiny import prompts
from tests.architectures.variants import VARIANTS
from trtkit.catalog.formats import BACKENDS
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.engine.cpu.graph import build_model
from trtkit.errors import StageError
from trtkit.plan.resolve import quant_plan

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": 1,
}
LONG = "phi3-longrope-long"
"""Its prompt is longer than the plan allows on this back end: other angles, from the first token on."""
REFUSED = {"mixtral", "qwen2-moe", "qwen3-moe", "gemma2", "falcon-rw", "yarn"}
"""Beginnings of the names of variants that the graph does not express."""


def is_refused(name: str) -> bool:
    return any(part in name for part in REFUSED)


@pytest.fixture
def checkpoint(build, tmp_path):  # noqa: F811 - the fixture
    def make(name: str) -> TrtllmCheckpoint:
        source = HfCheckpoint.open(build(name).folder)
        convert(source, tmp_path / "out", dtype="float32", recipe=Plain(quant_plan("none")))
        return TrtllmCheckpoint.open(tmp_path / "out")

    return make


@pytest.mark.parametrize("name", [name for name in VARIANTS if not is_refused(name) and name != LONG])
def test_logits_agree_with_transformers(name, build, checkpoint):  # noqa: F811
    opened = checkpoint(name)
    assert opened.config["architecture"] in BACKENDS["cpu"].architectures
    model = build_model(opened)
    # Up to the shortest window every token sees every earlier one, as here.
    seen = min(window or prompts().shape[1] for window in VARIANTS[name].windows)
    tokens = prompts()[:1, :seen].numpy()
    inputs = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "position_ids": np.arange(seen)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    logits = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request().infer(inputs)["logits"]
    assert np.abs(logits - build(name).logits[:1, :seen].numpy()).max() < 1e-3
    paged_attention_transformation(model)
    paged = [op for op in model.get_ops() if op.get_type_name() == "PagedAttentionExtension"]
    assert len(paged) == opened.config["num_hidden_layers"]


@pytest.mark.parametrize("name", [name for name in VARIANTS if is_refused(name)])
def test_what_the_graph_does_not_express_is_refused(name, checkpoint):
    with pytest.raises(StageError, match="CPU back end") as caught:
        build_model(checkpoint(name))
    assert caught.value.hint
