"""Scales of the KV cache of models whose K goes through a norm after its projection."""

from __future__ import annotations

import numpy as np
import pytest

from tests.checkpoint.conftest import save
from tests.quantize.test_recipes import qwen3, record_all
from trtkit.checkpoint.safetensors import read_header
from trtkit.errors import InputError

K, V = 45.25, 1.5


@pytest.fixture
def recorded(tmp_path):
    """Ranges of projections that reach 9, and a K that the norm has made five times larger."""
    model = qwen3(tmp_path / "qwen3")
    old = record_all(model)
    ranges = {name: info.read() for name, info in read_header(old).items()}
    for name in [name for name in ranges if name.endswith("k_proj|y")]:
        layer, size = name.split(".self_attn")[0], len(ranges[name])
        for cache, largest in (("k_cache|y", K), ("v_cache|y", V)):
            ranges[f"{layer}.{cache}"] = np.linspace(0, largest, size, dtype=np.float32)
    new = tmp_path / "new.safetensors"
    save(new, ranges)
    return model, old, new


@pytest.mark.parametrize("covers", [None, "qkv", "kv"])
def test_a_normed_k_is_covered_as_the_cache_keeps_it(recorded, write, covers):
    model, _, ranges = recorded
    checkpoint = write(model, "none", kv_cache="int8", ranges=ranges, kv_scale=covers)
    for layer in range(2):
        scale = checkpoint.tensor(f"transformer.layers.{layer}.attention.kv_cache_scaling_factor")
        assert scale == pytest.approx(K / 127)


@pytest.mark.parametrize("kv_cache", ["int8", "fp8"])
def test_ranges_without_the_cache_of_a_normed_k_are_refused(recorded, write, kv_cache):
    model, old, _ = recorded
    with pytest.raises(InputError, match=r"k_cache\|y: there is no range") as caught:
        write(model, "none", kv_cache=kv_cache, ranges=old)
    assert "record the ranges of this model again" in str(caught.value)
