"""The graph of every family against the forward pass that reads nothing but the checkpoint."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.architectures.conftest import build  # noqa: F401 - a fixture
from tests.architectures.forward import forward
from tests.architectures.reassemble import load
from tests.architectures.tiny import PROMPT_TOKENS, prompts
from tests.architectures.variants import VARIANTS
from tests.engine.graph.conftest import small_spec
from tests.engine.graph.session import Session
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.engine.graph.write import write_graph
from trtkit.errors import ContractError
from trtkit.plan.resolve import quant_plan

REFUSED = {
    "gemma2": "attn_logit_softcapping",
    "falcon-rw": "position_embedding_type",
    "phi3-longrope-long": "longrope_scaling_short_factors",
}
"""Variants that no graph expresses, with the key that a refusal names."""


@pytest.fixture
def checkpoint(build: Any, tmp_path: Any) -> Any:  # noqa: F811 - the fixture
    def make(name: str) -> Any:
        source = HfCheckpoint.open(build(name).folder)
        convert(source, tmp_path / "out", dtype="float32", recipe=Plain(quant_plan("none")))
        return tmp_path / "out"

    return make


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in REFUSED])
def test_logits_agree_with_the_reference(checkpoint: Any, tmp_path: Any, name: str, paged: bool) -> None:
    """Windows are part of the graph: prompts are longer than those of the variants."""
    spec = small_spec(slots=2, all_logits=True, paged=paged)
    folder = checkpoint(name)
    session = Session(write_graph(folder, tmp_path, spec), spec)
    expected = forward(*load(folder), prompts(), VARIANTS[name].windows).numpy()
    assert min(window or 0 for window in VARIANTS[name].windows) < PROMPT_TOKENS
    split = PROMPT_TOKENS // 2  # positions behind a past, too
    tokens = prompts().numpy()
    halves = [session.step([0, 1], part) for part in (tokens[:, :split], tokens[:, split:])]
    assert np.abs(np.concatenate(halves, axis=1) - expected).max() < 1e-3


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_graph_expresses_is_refused_by_name(checkpoint: Any, tmp_path: Any, name: str) -> None:
    with pytest.raises(ContractError, match=REFUSED[name]) as caught:
        write_graph(checkpoint(name), tmp_path, small_spec())
    assert all(problem.hint for problem in caught.value.problems)
    assert not list(tmp_path.glob("model.*"))


def test_experts_in_a_format_are_refused(checkpoint: Any, tmp_path: Any) -> None:
    folder = checkpoint("mixtral")
    config = json.loads((folder / "config.json").read_text())
    config["quantization"]["quant_algo"] = "W8A16"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ContractError, match="W8A16: experts"):
        write_graph(folder, tmp_path, small_spec())
