"""Tiny models, each built once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from torch import Tensor


class TinyModel(NamedTuple):
    """A saved model in the spelling of both generations of transformers, and what it computes."""

    folder: Path
    folder_of_4: Path
    logits: Tensor


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Return a function that builds the model of a named variant, or gives it again."""
    import torch
    from transformers.utils import logging

    from tests.architectures import spelling, tiny
    from tests.architectures.variants import REFUSED, VARIANTS

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    base = tmp_path_factory.mktemp("tiny")

    @cache
    def built(name: str) -> TinyModel:
        variant = VARIANTS[name] if name in VARIANTS else REFUSED[name][0]
        folder = base / name
        tiny.build(variant, folder)
        return TinyModel(folder, spelling.respell(folder), tiny.expected_logits(variant, folder))

    return built
