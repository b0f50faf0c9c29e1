"""Arithmetic by bits against numpy's and ml_dtypes' own, bit for bit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trtkit.checkpoint.kernels import FP8_MAX, Kernels
from trtkit.errors import InputError

E4M3 = ml_dtypes.float8_e4m3fn
ALL_FP8 = np.arange(256, dtype=np.uint8).view(E4M3).astype(np.float32)
ALL_FP16 = np.arange(65536, dtype=np.uint16).view(np.float16)
FINITE_FP16 = ALL_FP16[np.isfinite(ALL_FP16)]


def around(grid: np.ndarray) -> np.ndarray:
    """Return numbers, the middles between them, and what is next to these."""
    points = np.unique(grid[np.isfinite(grid)].astype(np.float64))
    middles = ((points[1:] + points[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(side)) for side in (-1e9, 1e9)]
    return np.concatenate([points.astype(np.float32), middles, *beside])


@given(
    arrays(
        np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)
def test_fp8_rounds_to_nearest_even_and_saturates(values: np.ndarray) -> None:
    expected = np.clip(values, -FP8_MAX, FP8_MAX).astype(E4M3)
    assert Kernels().to_float8(values).tobytes() == expected.tobytes()


def test_fp8_decides_right_between_any_two_neighbours() -> None:
    values = around(ALL_FP8)
    assert Kernels().to_float8(values).tobytes() == values.astype(E4M3).tobytes()


def test_the_float16_grid_decides_right_between_any_two_neighbours() -> None:
    values = around(FINITE_FP16)
    rounded = Kernels().to_float16_grid(values.copy())
    assert (rounded == values.astype(np.float16)).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_widening_changes_no_value(dtype: type) -> None:
    values = FINITE_FP16.astype(dtype)
    assert Kernels().widen(values).tobytes() == values.astype(np.float32).tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@given(values=arrays(np.float32, (3, 5), elements=st.floats(-60000, 60000, width=16)))
def test_largest_magnitudes_are_numpys(dtype: type, values: np.ndarray) -> None:
    narrow = values.astype(dtype)
    for axis in (0, 1):
        largest = Kernels().amax(narrow, axis, name="w", path=Path("f"))
        assert (largest == np.abs(narrow.astype(np.float32)).max(axis=axis)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_what_is_not_finite_is_refused_by_name(dtype: type, bad: float) -> None:
    values = np.array([[1, 2], [3, bad]], dtype)
    with pytest.raises(InputError, match=r"q_proj\.weight holds NaN or infinity"):
        Kernels().amax(values, 1, name="q_proj.weight", path=Path("f"))


def test_buffers_grow_and_shrink_with_the_blocks() -> None:
    kernels, rng = Kernels(), np.random.default_rng(0)
    for rows in (3, 40, 7):
        values = rng.standard_normal((rows, 5), np.float32) * 100
        assert kernels.to_float8(values).tobytes() == values.astype(E4M3).tobytes()
        assert (
            kernels.to_int8(values.copy()).tobytes() == np.rint(values).astype(np.int8).tobytes()
            or (np.abs(values) > 127).any()
        )
