# ruff: noqa: E402 - what follows the two checks needs both libraries
"""The tiny models leave nothing unseen: whatever a conversion loses or leaves alone moves their logits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.architectures.tiny import expected_logits, prompts, reopen
from tests.architectures.variants import VARIANTS


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_no_parameter_can_be_lost_unseen(name, build):
    model, logits = reopen(VARIANTS[name], build(name).folder), build(name).logits
    for key, parameter in model.named_parameters():
        kept = parameter.clone()
        parameter.zero_()
        moved = (model(prompts()).logits - logits).abs().max()
        parameter.copy_(kept)
        assert moved > 1e-2, key


@pytest.mark.parametrize("name", VARIANTS)
def test_transformers_reads_both_spellings_alike(name, build):
    model = build(name)
    assert torch.equal(expected_logits(VARIANTS[name], model.folder_of_4), model.logits)
