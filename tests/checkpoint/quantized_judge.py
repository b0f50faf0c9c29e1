"""What the linear layers of a quantized TensorRT-LLM checkpoint stand for, from the definition of each algorithm.

It knows nothing of trtkit's converter: names, shapes and arithmetic are those of TensorRT-LLM's layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Tensors = Mapping[str, np.ndarray]


def dequantized(tensors: Tensors, layer: str, quantization: Mapping) -> np.ndarray:
    """Return one rank's weight ``(out, in)``."""
    parts = {
        name.removeprefix(f"{layer}."): value.astype(np.float32) if value.dtype.itemsize > 1 else value
        for name, value in tensors.items()
        if name.startswith(f"{layer}.")
    }
    return _FORMS[quantization["quant_algo"]](parts, quantization)


def _fp8(parts, _):
    assert parts["activation_scaling_factor"].shape == parts["weights_scaling_factor"].shape == (1,)
    return parts["weight"].astype(np.float32) * parts["weights_scaling_factor"][0]


def _fp8_rows(parts, _):
    return parts["weight"].astype(np.float32) * parts["per_channel_scale"][:, None]


def _int8_rows(parts, _):
    assert (parts.get("smoother", np.ones(1)) == 1).all()
    return parts["weight"].astype(np.float32) * parts["per_channel_scale"].T


def _awq(parts, quantization):
    packed, group = parts["weight"], quantization["group_size"]
    codes = np.empty((2 * len(packed), packed.shape[1]), np.int8)
    codes[0::2] = np.where((packed & 15) > 7, (packed & 15) - 16, packed & 15)
    codes[1::2] = packed >> 4
    weight = codes * np.repeat(parts["weights_scaling_factor"], group, axis=1)
    if quantization["has_zero_point"]:
        weight += np.repeat(parts["zero"].T, group, axis=1)
    if quantization["pre_quant_scale"]:
        # The activation is multiplied by it.
        weight *= parts["prequant_scaling_factor"]
    return weight


_FORMS = {
    "FP8": _fp8,
    "FP8_PER_CHANNEL_PER_TOKEN": _fp8_rows,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _int8_rows,
    "W4A16_AWQ": _awq,
}


def interleaved_codes(weight: np.ndarray) -> np.ndarray:
    """Return the unsigned codes ``(out, in)`` of a ``(in, out / 4)`` weight baked for SM 75 to 89.

    Undoes one step of ``preprocess_weights_for_mixed_gemm`` after the other.
    """
    width, out = weight.shape[0], weight.shape[1] * 4
    data = np.ascontiguousarray(weight).view(np.uint8).reshape(-1)
    nibbles = np.stack([data & 15, data >> 4], axis=-1).reshape(-1, 8)
    # An int32 holds elements 0 2 4 6 1 3 5 7.
    straight = np.empty_like(nibbles)
    straight[:, [0, 2, 4, 6, 1, 3, 5, 7]] = nibbles
    rows = straight.reshape(out // 4, width // 64, 4, 64).transpose(0, 2, 1, 3).reshape(out, width)
    # Rows of a tile of 32 were read in the order 0 1 8 9 16 17 24 25, 2 3 10 11 ...
    order = [8 * quarter + 2 * pair + one for pair in range(4) for quarter in range(4) for one in range(2)]
    codes = np.empty_like(rows)
    codes.reshape(out, -1, 32)[:, :, order] = rows.reshape(out, -1, 32)
    return codes


def transposed_codes(weight: np.ndarray) -> np.ndarray:
    """Return the signed codes ``(out, in)`` of a weight for SM 90, whose memory is that of its transpose."""
    data = np.ascontiguousarray(weight).view(np.int8).reshape(weight.shape[1] * 4, -1)
    return np.stack([(data << 4) >> 4, data >> 4], axis=-1).reshape(len(data), -1)


def rank_weight(
    truth: Tensors, layer: int, name: str, tp: int, rank: int, heads: int, kv_heads: int
) -> np.ndarray:
    """Return what ``rank`` holds of a layer, cut from the weights of a Llama by TensorRT-LLM's rules."""
    here = f"model.layers.{layer}."

    def rows(source: str, parts: int = tp, part: int = rank) -> np.ndarray:
        return np.split(truth[here + source], parts)[part]

    if name == "attention.qkv":
        keys = (kv_heads, rank * kv_heads // tp) if tp > kv_heads else (tp, rank)
        return np.concatenate([
            rows("self_attn.q_proj"), rows("self_attn.k_proj", *keys), rows("self_attn.v_proj", *keys)
        ])  # fmt: skip
    if name in ("mlp.fc", "mlp.gate"):
        return rows("mlp.gate_proj" if name == "mlp.fc" else "mlp.up_proj")
    source = "self_attn.o_proj" if name == "attention.dense" else "mlp.down_proj"
    return np.split(truth[here + source], tp, axis=1)[rank]
