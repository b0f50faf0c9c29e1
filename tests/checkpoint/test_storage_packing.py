"""INT4 codes survive every way of packing them, and FP8 values a change of their scale."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint import quantized_judge as judge
from trtkit.checkpoint.forms.baked import BakedLayout, interleaved
from trtkit.checkpoint.forms.per_tensor import rescaling
from trtkit.checkpoint.forms.rows import placed

FLOAT8 = ml_dtypes.float8_e4m3fn


@st.composite
def codes(draw):
    rows, columns = 4 * draw(st.integers(1, 6)), 64 * draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.integers(-8, 8, (rows, columns)).astype(np.int8)


@given(codes())
def test_interleaved_codes_are_found_again(values):
    memory = interleaved(values).reshape(values.shape[1], -1).view(np.float16)
    assert (judge.interleaved_codes(memory).astype(int) - 8 == values).all()


@given(codes())
def test_transposed_codes_are_found_again(values):
    _, memory = BakedLayout.TRANSPOSED.bake(0, values)
    assert (judge.transposed_codes(memory.view(np.float16).reshape(values.shape[1], -1)) == values).all()


@given(st.floats(2**-20, 2**10, width=32), st.floats(1, 2**12, width=32))
def test_a_larger_scale_costs_half_a_step_and_never_overflows(scale, factor):
    small, large = np.float32(scale), np.float32(scale) * np.float32(factor)
    table = rescaling(small, large).astype(np.float32)
    values = np.arange(256, dtype=np.uint8).view(FLOAT8).astype(np.float32)
    finite = np.isfinite(values)
    assert (np.isfinite(table) == finite).all()
    want = values[finite].astype(np.float64) * small
    step = np.maximum(np.abs(want) / large * 2**-4, 2**-10) * large
    assert (np.abs(table[finite].astype(np.float64) * large - want) <= step * 1.0001).all()


@given(st.permutations(range(6)), st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_rows_arrive_where_their_order_puts_them_however_they_are_read(order, sizes):
    parts = [range(4 * place, 4 * place + 4) for place in order]
    source = np.arange(24)[:, None]
    cuts = np.cumsum(sizes)
    blocks = [block for block in np.split(source, cuts[cuts < 24]) if len(block)]
    target = np.full((24, 1), -1)
    for row, block in placed(blocks, parts, 0):
        target[row : row + len(block)] = block
    assert target[:, 0].tolist() == [row for part in parts for row in part]
