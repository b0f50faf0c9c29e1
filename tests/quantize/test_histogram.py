"""The INT8 step of a KV cache against the errors of the values themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.quantize.histogram import BINS, SHIFT, best_int8_step


def counted(values):
    bits = np.abs(values).astype(np.float32).view(np.uint32) >> SHIFT
    return np.bincount(bits, minlength=BINS).astype(np.float32)


def squared_error(values, step):
    return float(((values - np.clip(np.rint(values / step), -128, 127) * step) ** 2).mean())


def test_nothing_is_clipped_where_all_values_are_as_likely():
    values = np.random.default_rng(0).uniform(-5, 5, 20_000)
    assert best_int8_step(counted(values)) == pytest.approx(5 / 127, rel=0.05)


@given(seed=st.integers(0, 1000), tail=st.floats(2, 60), rare=st.integers(1, 20))
def test_rare_outliers_are_clipped_as_far_as_that_loses_less(seed, tail, rare):
    chance = np.random.default_rng(seed)
    values = np.concatenate([chance.standard_normal(20_000), chance.uniform(tail / 2, tail, rare)])
    largest = np.abs(values).max()
    found = squared_error(values, best_int8_step(counted(values)))
    best = min(squared_error(values, largest / 127 * ratio) for ratio in np.arange(10, 41) / 40)
    assert found <= 1.15 * best
    assert found <= 1.02 * squared_error(values, largest / 127)
