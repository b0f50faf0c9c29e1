"""Arithmetic by bits against numpy's and ml_dtypes' own, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trtkit.checkpoint.kernels import FP8_MAX, Kernels, kernels_for
from trtkit.errors import InputError

E4M3 = ml_dtypes.float8_e4m3fn
ALL_FP8 = np.arange(256, dtype=np.uint8).view(E4M3).astype(np.float32)
ALL_FP16 = np.arange(65536, dtype=np.uint16).view(np.float16)
FINITE_FP16 = ALL_FP16[np.isfinite(ALL_FP16)]


DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32)
floats = st.floats(-(2.0**100), 2.0**100, width=32)


@pytest.fixture(scope="module")
def fast() -> Kernels:
    return pytest.importorskip("trtkit.checkpoint.kernels_fast", exc_type=ImportError).FastKernels()


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


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def finite(values: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype)
    return np.where(np.isfinite(narrow.astype(np.float32)), narrow, np.zeros_like(narrow))


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_kernels_agree_on_every_float16_and_beside_each(fast: Kernels, dtype: type) -> None:
    values = finite(around(FINITE_FP16), dtype)
    values = values[: len(values) // 128 * 128].reshape(-1, 128)
    for factors in np.random.default_rng(0).uniform(0.01, 20, (3, 128)):
        tiled = Kernels().repeated(factors, len(values))
        repeated = fast.repeated(factors, len(values))
        assert same(fast.smoothed(values, repeated), Kernels().smoothed(values, tiled))
    for axis in (0, 1):
        assert same(fast.largest(values, axis), Kernels().largest(values, axis))
    for each, expected in zip(fast.weight_only(values), Kernels().weight_only(values), strict=True):
        assert same(each, expected)


def test_compiled_kernels_agree_on_every_bfloat16(fast: Kernels) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    values = (
        np.where(bits & 0x7F80 == 0x7F80, 0, bits)
        .astype(np.uint16)
        .view(ml_dtypes.bfloat16)
        .reshape(256, 256)
    )
    factors = np.ones(values.shape)
    with np.errstate(all="ignore"):
        expected = Kernels().smoothed(values, factors)
        assert same(fast.smoothed(values, factors)[np.isfinite(expected)], expected[np.isfinite(expected)])
        for each, plain in zip(fast.weight_only(values), Kernels().weight_only(values), strict=True):
            assert same(each, plain)


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    values=arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 70)), elements=floats),
    data=st.data(),
)
def test_compiled_kernels_agree_on_any_numbers(
    fast: Kernels, dtype: type, values: np.ndarray, data: st.DataObject
) -> None:
    narrow = finite(values, dtype)
    factors = data.draw(arrays(np.float64, values.shape[1], elements=st.floats(1e-5, 1e5)))
    with np.errstate(all="ignore"):
        tiled = np.tile(factors, (len(values), 1))
        expected = Kernels().smoothed(narrow, tiled)
        held = np.isfinite(expected)
        assert same(fast.smoothed(narrow, tiled)[held], expected[held])
        for each, plain in zip(fast.weight_only(narrow), Kernels().weight_only(narrow), strict=True):
            assert same(each, plain)
    assert same(fast.to_float8(values), Kernels().to_float8(values))
    assert same(fast.to_float16_grid(values.copy()), Kernels().to_float16_grid(values.copy()))
    steps = np.clip(values, -127.4, 127.4).astype(np.float32)
    assert same(fast.to_int8(steps.copy()), Kernels().to_int8(steps.copy()))


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    values=arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 70)), elements=floats),
    data=st.data(),
)
def test_compiled_kernels_agree_where_each_row_has_a_number(
    fast: Kernels, dtype: type, values: np.ndarray, data: st.DataObject
) -> None:
    narrow, count = finite(values, dtype), len(values)
    divisors = data.draw(arrays(np.float32, count, elements=st.floats(2.0**-10, 2.0**10, width=32)))
    assert same(
        fast.divided_to_float8(narrow, divisors).copy(), Kernels().divided_to_float8(narrow, divisors)
    )
    factors = data.draw(arrays(np.float32, count, elements=st.floats(0, 127, width=32)))
    units = np.clip(values, -1, 1)
    for halves in (False, True):
        found, plain = (
            each.scaled_to_int8(units.copy(), factors, halves=halves) for each in (fast, Kernels())
        )
        assert same(found, plain)
    ones = np.ones(values.shape)
    with np.errstate(all="ignore"):
        (found, largest), (plain, expected) = (each.smoothed_rows(narrow, ones) for each in (fast, Kernels()))
    held = np.isfinite(expected)
    assert same(largest[held], expected[held])
    assert same(found[held], plain[held])
    assert not np.isfinite(largest[~held]).any()


def test_compiled_encoding_decides_right_between_any_two_neighbours(fast: Kernels) -> None:
    assert same(fast.to_float8(around(ALL_FP8)), Kernels().to_float8(around(ALL_FP8)))
    halves = np.arange(-127, 127, dtype=np.float32) + np.float32(0.5)
    assert same(fast.to_int8(halves.copy()), Kernels().to_int8(halves.copy()))


def test_compiled_interleaving_moves_the_same_bytes(fast: Kernels) -> None:
    rows = np.random.default_rng(0).integers(-128, 128, (6, 192)).astype(np.int8)
    assert same(fast.interleaved(rows), Kernels().interleaved(rows))


def test_transposed_and_flat_blocks_are_read_in_order(fast: Kernels) -> None:
    values = np.random.default_rng(0).standard_normal((9, 12), np.float32)
    tiled = np.tile(np.linspace(0.5, 2, 9), (12, 1))
    assert same(fast.smoothed(values.T, tiled), Kernels().smoothed(values.T, tiled))
    assert same(
        fast.to_float16_grid(values.T), np.ascontiguousarray(values.astype(np.float16).astype(np.float32).T)
    )
    assert same(fast.largest(values[0], 0), Kernels().largest(values[0], 0))


def test_little_work_is_not_worth_an_import(fast: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(kernels_for(1_000_000)) is Kernels
    assert type(kernels_for(1_000_000_000)) is type(fast)
    monkeypatch.setitem(sys.modules, "trtkit.checkpoint.kernels_fast", None)
    assert type(kernels_for(1_000_000_000)) is Kernels
