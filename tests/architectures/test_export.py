"""Plain exports of every architecture: transformers computes from them what it computes from the source."""

from __future__ import annotations

import pytest

from tests.architectures.variants import VARIANTS
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export import convert_to_hf
from trtkit.checkpoint.recipe import Plain
from trtkit.plan.resolve import quant_plan


@pytest.mark.parametrize("name", VARIANTS)
def test_an_exported_model_is_the_model(build, tmp_path, name):
    import torch

    from tests.architectures.tiny import expected_logits

    model = build(name)
    source, out = HfCheckpoint.open(model.folder_of_4), tmp_path / "out"
    convert_to_hf(source, out, dtype="float32", recipe=Plain(quant_plan("none")))
    assert torch.equal(expected_logits(VARIANTS[name], out), model.logits)
