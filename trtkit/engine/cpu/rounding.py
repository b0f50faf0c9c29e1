"""How activations become int8 or FP8, as parts of a graph.

INT8 is a ``FakeQuantize`` between integers: OpenVINO's CPU plugin takes it into the matrix product that follows, which
then multiplies int8 (``brgemm_avx512_i8``). FP8 stays in float32, of which E4M3's values are some.
"""

from __future__ import annotations

from typing import NamedTuple

from openvino import opset13 as op

from trtkit.engine.cpu.nodes import Node, floats, ints

INT8_MAX = 127.0
FP8_MAX = 448.0
_FP8_SMALLEST_STEP = 1 / (FP8_MAX * 512)
"""Of a token: what TensorRT-LLM's rows have too."""
_INT8_SMALLEST_STEP = 1e-6 / INT8_MAX
"""Of a token. It only keeps tokens of zeros from being divided by zero."""


class Tokens(NamedTuple):
    """Activations in steps: their product with ``step``, ``(batch, seq, 1)``, is what they stand for."""

    values: Node
    step: Node


def int8(steps: Node) -> Node:
    """Round half to even to -128 ... 127."""
    low, high = floats(-128.0), floats(127.0)
    return op.fake_quantize(steps, low, high, low, high, 256)


def e4m3(steps: Node) -> Node:
    """Round half to even to E4M3, the largest values to 448.

    ``FakeConvert`` would round to float16 first, so that 0.4 % of all values end up one step away.
    """
    x = op.clamp(steps, -FP8_MAX, FP8_MAX)
    # Dekker's split: x (2**20 + 1), less what it is larger than x, keeps 24 - 20 = 4 bits of x, E4M3's significand.
    wide = op.multiply(x, floats(2.0**20 + 1))
    normal = op.add(wide, op.subtract(x, wide))
    # Below 2**-6 all steps are 2**-9.
    tiny = op.multiply(op.round(op.multiply(x, floats(2.0**9)), "half_to_even"), floats(2.0**-9))
    return op.select(op.less(op.abs(x), floats(2.0**-6)), tiny, normal)


def int8_tokens(x: Node) -> Tokens:
    """Quantize each token by its largest magnitude."""
    step = op.maximum(op.divide(_largest(x), floats(INT8_MAX)), floats(_INT8_SMALLEST_STEP))
    return Tokens(int8(op.divide(x, step)), step)


def e4m3_tokens(x: Node) -> Tokens:
    """Quantize each token by its largest magnitude."""
    step = op.maximum(op.divide(_largest(x), floats(FP8_MAX)), floats(_FP8_SMALLEST_STEP))
    return Tokens(e4m3(op.divide(x, step)), step)


def _largest(x: Node) -> Node:
    return op.reduce_max(op.abs(x), ints([-1]), keep_dims=True)


CACHED = {"INT8": int8, "FP8": e4m3}
"""What a KV cache does to keys and values, by ``kv_cache_quant_algo``."""
