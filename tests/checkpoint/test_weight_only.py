"""INT8 weight-only quantization: the formula of TensorRT-LLM's loader."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from trtkit.checkpoint.weight_only import dequantize_int8, quantize_int8


def test_rounds_half_away_from_zero_and_clips_only_the_positive_end() -> None:
    weight = np.array(
        [[128, 64.5, -64.5, 0.5, -1.5, 0.25], [-64, 63.75, 0, 0, 1, 32]], dtype=ml_dtypes.bfloat16
    )
    quantized, scale = quantize_int8(weight)
    assert quantized.tolist() == [[127, 65, -65, 1, -2, 0], [-128, 127, 0, 0, 2, 64]]
    assert scale.tolist() == [1.0, 0.5]
    assert scale.dtype == weight.dtype


def test_zero_rows_stay_zero() -> None:
    quantized, scale = quantize_int8(np.zeros((2, 3), np.float16))
    assert not quantized.any()
    assert not dequantize_int8(quantized, scale).any()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@given(
    values=arrays(np.float32, array_shapes(min_dims=2, max_dims=2), elements=st.floats(-100, 100, width=16))
)
def test_error_is_at_most_half_a_step_but_for_the_maximum(dtype: type, values: np.ndarray) -> None:
    weight = values.astype(dtype)
    quantized, scale = quantize_int8(weight)
    steps = scale.astype(np.float32)[:, None]
    error = np.abs(dequantize_int8(quantized, scale) - weight.astype(np.float32))
    clipped = quantized == 127
    normal = steps > 1e-3  # below, float16 scales are subnormal and lose digits
    assert (error <= steps * 0.501)[~clipped & normal.repeat(weight.shape[1], 1)].all()
    assert (error <= steps * 1.001)[clipped & normal.repeat(weight.shape[1], 1)].all()
