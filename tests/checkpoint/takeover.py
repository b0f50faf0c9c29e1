"""What the tests of quantized sources share: conversions that work, and those that fail and leave nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint import quantized_model as model
from trtkit.catalog.parallel import ONE_RANK
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.forms.taken_over import take_over
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.storage import find_storage
from trtkit.checkpoint.storage.storage import Storage
from trtkit.errors import InputError


def stored(block: dict) -> Storage:
    return find_storage({"quantization_config": block}, None, file="config.json")


def write(folder: Path, form: str, edit=lambda tensors: None) -> Path:
    """Save a model in one of the formats by name."""
    return model.write(folder / "hf", model.FORMATS[form], edit=edit).folder


def attempt(folder: Path, *, ranks=ONE_RANK, dtype="float16", **wishes) -> Path:
    """Convert; return the checkpoint's folder, which is beside the source."""
    source, out = HfCheckpoint.open(folder), folder.with_name("out")
    convert(source, out, dtype=dtype, recipe=take_over(source.storage, **wishes), parallelism=ranks)
    return out


def failure(folder: Path, **options) -> str:
    """Convert what cannot be converted; return the message."""
    with pytest.raises(InputError) as caught:
        attempt(folder, **options)
    assert not folder.with_name("out").exists()
    return str(caught.value)
