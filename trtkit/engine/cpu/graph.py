"""Build a stateful OpenVINO model straight from a TensorRT-LLM checkpoint, without torch.

The shape of the graph is what the paged-attention pass of OpenVINO GenAI recognizes: per layer a ``ReadValue``, a
``Gather`` by ``beam_idx``, a ``Concat`` along the sequence and an ``Assign`` around one
``ScaledDotProductAttention``. The pass replaces them, and the mask, by block tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as op

from trtkit.checkpoint.weight_only import quantize_int8
from trtkit.engine.cpu.decoder import Decoder
from trtkit.errors import StageError

Array = npt.NDArray[Any]
Node = Any
"""An OpenVINO node or output; the binding is untyped."""

_HIDDEN = np.float32(-65504.0)  # survives a run in half precision, unlike -inf
_ELEMENT_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "int8": "i8"}


class Checkpoint(Protocol):
    """An opened TensorRT-LLM checkpoint of one rank."""

    @property
    def config(self) -> Mapping[str, Any]:
        """``config.json``."""

    def tensor(self, name: str) -> Array:
        """Return a tensor, memory-mapped if possible; bf16 as ``ml_dtypes.bfloat16``."""

    def __contains__(self, name: str) -> bool:
        """Tell whether a tensor of this name exists."""


def build_model(checkpoint: Checkpoint) -> Any:
    """Return an ``ov.Model``: input_ids, attention_mask, position_ids, beam_idx -> logits ``(batch, seq, vocab)``.

    Weights keep their stored dtype. With ``W8A16`` the linear layers are quantized here, as TensorRT-LLM's loader
    does. Memory: the weights once, and the largest one in float32 while it is quantized.
    """
    return _Builder(checkpoint).build()


class _Builder:
    """One build: the inputs, the shared sub-graphs, then layer after layer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.decoder = Decoder.from_config(checkpoint.config)
        self.sinks: list[Node] = []
        self.input_ids = _parameter("input_ids", [-1, -1], ov.Type.i64)
        self.attention_mask = _parameter("attention_mask", [-1, -1], ov.Type.i64)
        self.position_ids = _parameter("position_ids", [-1, -1], ov.Type.i64)
        self.beam_idx = _parameter("beam_idx", [-1], ov.Type.i32)
        shape = op.shape_of(self.input_ids)
        self.batch = op.gather(shape, _ints([0]), _ints(0))
        self.new_tokens = op.gather(shape, _ints(1), _ints(0))
        self.all_tokens = op.gather(op.shape_of(self.attention_mask), _ints(1), _ints(0))
        self.mask = self.causal_mask()
        self.cosine, self.sine = self.rotary_tables()

    def build(self) -> Any:
        tokens = op.convert(self.input_ids, "i32")
        hidden = op.gather(self.weight("transformer.vocab_embedding.weight"), tokens, _ints(0))
        for index in range(self.decoder.num_layers):
            layer = f"transformer.layers.{index}."
            normed = self.rms_norm(hidden, layer + "input_layernorm")
            attended = self.attention(normed, index, layer + "attention.")
            hidden = op.add(hidden, attended)
            normed = self.rms_norm(hidden, layer + "post_layernorm")
            hidden = op.add(hidden, self.gated_mlp(normed, layer + "mlp."))
        hidden = self.rms_norm(hidden, "transformer.ln_f")
        tied = "lm_head.weight" not in self.checkpoint
        head = self.weight("transformer.vocab_embedding.weight" if tied else "lm_head.weight")
        result = op.result(op.matmul(hidden, head, transpose_a=False, transpose_b=True))
        result.output(0).set_names({"logits"})
        inputs = [self.input_ids, self.attention_mask, self.position_ids, self.beam_idx]
        model = ov.Model([result], self.sinks, inputs, "trtkit_decoder")
        # Names given by default count up over the life of the process; the same checkpoint must give the same bytes.
        for number, node in enumerate(model.get_ordered_ops()):
            if node.get_type_name() != "Parameter":
                node.set_friendly_name(f"op{number}")
        return model

    def tensor(self, name: str) -> Array:
        if name not in self.checkpoint:
            raise StageError(
                f"checkpoint has no tensor {name!r}", hint="convert the model again with `trtkit convert`"
            )
        return self.checkpoint.tensor(name)

    def constant(self, array: Array) -> Node:
        """Return a constant of the array's own type, copied: OpenVINO would not keep numpy's memory alive."""
        if array.dtype.name not in _ELEMENT_TYPES:
            hint = f"convert with dtype {', '.join(_ELEMENT_TYPES)}"
            raise StageError(f"tensor of dtype {array.dtype.name} cannot run on the CPU back end", hint=hint)
        # The binding knows no bfloat16 array: hand over integers of the same width and name the type.
        raw = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
        tensor = ov.Tensor(raw, list(array.shape), getattr(ov.Type, _ELEMENT_TYPES[array.dtype.name]))
        return ov.op.Constant(tensor, shared_memory=False)

    def weight(self, name: str) -> Node:
        """Return a stored tensor as f32; the plugin keeps the stored dtype in memory and converts as it multiplies."""
        return op.convert(self.constant(self.tensor(name)), "f32")

    def linear(self, x: Node, name: str) -> Node:
        if self.decoder.int8_weights:
            quantized, scale = quantize_int8(self.tensor(name + ".weight"))
            weight = op.multiply(
                op.convert(self.constant(quantized), "f32"), _floats(scale.astype(np.float32)[:, None])
            )
        else:
            weight = self.weight(name + ".weight")
        y = op.matmul(x, weight, transpose_a=False, transpose_b=True)
        return op.add(y, _floats(self.tensor(name + ".bias"))) if name + ".bias" in self.checkpoint else y

    def rms_norm(self, x: Node, name: str) -> Node:
        mean_square = op.reduce_mean(op.power(x, _floats(2.0)), _ints([-1]), keep_dims=True)
        root = op.sqrt(op.add(mean_square, _floats(self.decoder.norm_epsilon)))
        return op.multiply(
            op.multiply(x, op.divide(_floats(1.0), root)), _floats(self.tensor(name + ".weight"))
        )

    def gated_mlp(self, x: Node, prefix: str) -> Node:
        """TensorRT-LLM's ``fc`` is the gated half (Hugging Face ``gate_proj``), its ``gate`` is ``up_proj``."""
        gated = op.multiply(op.swish(self.linear(x, prefix + "fc")), self.linear(x, prefix + "gate"))
        return self.linear(gated, prefix + "proj")

    def attention(self, x: Node, index: int, prefix: str) -> Node:
        d = self.decoder
        widths = [d.num_heads * d.head_size, d.num_kv_heads * d.head_size, d.num_kv_heads * d.head_size]
        q, k, v = op.variadic_split(self.linear(x, prefix + "qkv"), _ints(2), _ints(widths)).outputs()
        q, k, v = (
            _heads(y, n, d.head_size) for y, n in ((q, d.num_heads), (k, d.num_kv_heads), (v, d.num_kv_heads))
        )
        if prefix + "q_layernorm.weight" in self.checkpoint:
            q, k = self.rms_norm(q, prefix + "q_layernorm"), self.rms_norm(k, prefix + "k_layernorm")
        q, k = self.rotate(q), self.rotate(k)
        keys, values = self.cached(k, index, "key"), self.cached(v, index, "value")
        scale = _floats(d.head_size**-0.5)
        y = op.scaled_dot_product_attention(q, keys, values, self.mask, scale, causal=False)
        y = op.reshape(op.transpose(y, _ints([0, 2, 1, 3])), _ints([0, 0, widths[0]]), special_zero=True)
        return self.linear(y, prefix + "dense")

    def cached(self, y: Node, index: int, kind: str) -> Node:
        """Append to the layer's state and repeat each KV head for its group of query heads."""
        d = self.decoder
        empty = op.broadcast(
            _floats(0.0), op.concat([self.batch, _ints([d.num_kv_heads, 0, d.head_size])], 0)
        )
        name = f"past_key_values.{index}.{kind}present.{index}.{kind}"
        shape = ov.PartialShape([-1, d.num_kv_heads, -1, d.head_size])
        past = op.gather(ov.opset6.read_value(empty, name, ov.Type.f32, shape), self.beam_idx, _ints(0))
        present = op.concat([past, y], 2)
        self.sinks.append(ov.opset6.assign(present, name))
        group = _ints([d.num_kv_heads, d.num_heads // d.num_kv_heads])
        length = op.unsqueeze(self.all_tokens, _ints([0]))
        wide = op.concat([self.batch, group, length, _ints([d.head_size])], 0)
        repeated = op.broadcast(op.unsqueeze(present, _ints([2])), wide)
        flat = op.concat([self.batch, _ints([d.num_heads, -1, d.head_size])], 0)
        return op.reshape(repeated, flat, special_zero=False)

    def rotary_tables(self) -> tuple[Node, Node]:
        """Return cosine and sine of shape ``(batch, 1, seq, head_size)``, both halves alike (NeoX order)."""
        frequencies = _floats(self.decoder.inverse_frequencies.reshape(1, -1, 1))
        positions = op.convert(op.unsqueeze(self.position_ids, _ints([1])), "f32")
        angles = op.transpose(
            op.matmul(frequencies, positions, transpose_a=False, transpose_b=False), _ints([0, 2, 1])
        )
        both = op.concat([angles, angles], -1)
        return op.unsqueeze(op.cos(both), _ints([1])), op.unsqueeze(op.sin(both), _ints([1]))

    def rotate(self, x: Node) -> Node:
        half = self.decoder.head_size // 2
        first = op.slice(x, _ints([0]), _ints([half]), _ints([1]), _ints([3]))
        second = op.slice(x, _ints([half]), _ints([2 * half]), _ints([1]), _ints([3]))
        swapped = op.concat([op.multiply(second, _floats(-1.0)), first], -1)
        return op.add(op.multiply(x, self.cosine), op.multiply(swapped, self.sine))

    def causal_mask(self) -> Node:
        """Return ``(batch, 1, seq, all)``: 0 where a query may look, the lowest half-precision float elsewhere."""
        columns = op.range(_ints(0), self.all_tokens, _ints(1), "i64")
        past = op.subtract(self.all_tokens, self.new_tokens)
        rows = op.add(op.range(_ints(0), self.new_tokens, _ints(1), "i64"), past)
        causal = op.less_equal(op.unsqueeze(columns, _ints([0])), op.unsqueeze(rows, _ints([1])))
        present = op.convert(op.unsqueeze(self.attention_mask, _ints([1, 2])), "boolean")
        return op.select(op.logical_and(causal, present), _floats(0.0), _floats(_HIDDEN))


def _parameter(name: str, shape: list[int], element_type: Any) -> Node:
    node = op.parameter(shape, element_type, name=name)
    node.output(0).set_names({name})
    return node


def _heads(x: Node, count: int, size: int) -> Node:
    """Reshape ``(batch, seq, count * size)`` to ``(batch, count, seq, size)``."""
    return op.transpose(op.reshape(x, _ints([0, 0, count, size]), special_zero=True), _ints([0, 2, 1, 3]))


def _ints(values: Any) -> Node:
    return op.constant(np.asarray(values, dtype=np.int64))


def _floats(values: Any) -> Node:
    """Return an f32 constant: norms, biases and scales are small, so they are copied."""
    return op.constant(np.asarray(values).astype(np.float32))
