"""Build a stateful OpenVINO model straight from a TensorRT-LLM checkpoint, without torch.

The shape of the graph is what the paged-attention pass of OpenVINO GenAI recognizes: per layer a ``ReadValue``, a
``Gather`` by ``beam_idx``, a ``Concat`` along the sequence and an ``Assign`` around one
``ScaledDotProductAttention``. The pass replaces them, and the mask, by block tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

from trtkit.engine.cpu.decoder import read_decoder
from trtkit.engine.cpu.linear import Linears
from trtkit.engine.cpu.nodes import Array, Node, constant, floats, ints, product
from trtkit.engine.cpu.rounding import CACHED
from trtkit.engine.decoder import FIXED_EPSILON
from trtkit.engine.tensors import Checkpoint, Tensors

_HIDDEN = np.float32(-65504.0)  # survives a run in half precision, unlike -inf


def build_model(checkpoint: Checkpoint) -> Any:
    """Return an ``ov.Model``: input_ids, attention_mask, position_ids, beam_idx -> logits ``(batch, seq, vocab)``.

    Weights keep their stored type. With ``W8A16`` the linear layers are quantized here, as TensorRT-LLM's loader
    does. Memory: the weights once, and the largest one in float32 while it is quantized.
    """
    return _Builder(checkpoint).build()


class _Builder:
    """One build: the inputs, the shared sub-graphs, then layer after layer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.decoder = read_decoder(checkpoint.config)
        self.tensors = Tensors(checkpoint)
        self.linear = Linears(self.tensors, checkpoint.config)
        self.sinks: list[Node] = []
        self.input_ids = _parameter("input_ids", [-1, -1], ov.Type.i64)
        self.attention_mask = _parameter("attention_mask", [-1, -1], ov.Type.i64)
        self.position_ids = _parameter("position_ids", [-1, -1], ov.Type.i64)
        self.beam_idx = _parameter("beam_idx", [-1], ov.Type.i32)
        shape = op.shape_of(self.input_ids)
        self.batch = op.gather(shape, ints([0]), ints(0))
        self.new_tokens = op.gather(shape, ints(1), ints(0))
        self.all_tokens = op.gather(op.shape_of(self.attention_mask), ints(1), ints(0))
        self.mask = self.causal_mask()
        self.rotary = self.rotary_tables(self.decoder.inverse_frequencies)
        local = self.decoder.local_frequencies
        self.local_rotary = None if local is None else self.rotary_tables(local)

    def build(self) -> Any:
        hidden = self.embedding()
        for index in range(self.decoder.num_layers):
            hidden = self.layer(hidden, index)
        hidden = self.scaled(self.norm(hidden, "transformer.ln_f"), self.decoder.logits_scale)
        logits = self.capped(self.head(hidden))
        result = op.result(logits)
        result.output(0).set_names({"logits"})
        self.tensors.close()
        inputs = [self.input_ids, self.attention_mask, self.position_ids, self.beam_idx]
        model = ov.Model([result], self.sinks, inputs, "trtkit_decoder")
        # Names given by default count up over the life of the process; the same checkpoint must give the same bytes.
        for number, node in enumerate(model.get_ordered_ops()):
            if node.get_type_name() != "Parameter":
                node.set_friendly_name(f"op{number}")
        return model

    def head(self, hidden: Node) -> Node:
        """Return the logits; the head may be quantized, or be the embedding."""
        if self.tensors.block_of("lm_head").get("quant_algo"):
            return self.linear(hidden, "lm_head")
        tied = "lm_head.weight" not in self.tensors
        return product(
            hidden, self.weight("transformer.vocab_embedding.weight" if tied else "lm_head.weight")
        )

    def weight(self, name: str) -> Node:
        """Return a stored table as f32."""
        return op.convert(constant(self.tensors.read(name)), "f32")

    def embedding(self) -> Node:
        """Return the hidden states of the tokens; with learned positions these are added."""
        tokens = op.convert(self.input_ids, "i32")
        hidden = op.gather(self.weight("transformer.vocab_embedding.weight"), tokens, ints(0))
        hidden = self.scaled(hidden, self.decoder.embedding_scale)
        if (positions := "transformer.position_embedding.weight") not in self.tensors:
            return hidden
        return op.add(hidden, op.gather(self.weight(positions), self.position_ids, ints(0)))

    def layer(self, x: Node, index: int) -> Node:
        """Run one layer: in a row, side by side, or (Gemma 2 and 3) with norms behind attention and MLP too."""
        prefix = f"transformer.layers.{index}."
        normed = self.norm(x, prefix + "input_layernorm")
        attended = self.attention(normed, index, prefix + "attention.")
        if self.decoder.family.parallel and prefix + "post_layernorm.weight" not in self.tensors:
            for name in ("post_attention_layernorm", "mlp_layernorm"):
                if prefix + name + ".weight" in self.tensors:
                    normed = self.norm(x, prefix + name)
            return op.add(op.add(x, attended), self.mlp(normed, prefix + "mlp."))
        scale = self.decoder.residual_scale
        if prefix + "pre_feedforward_layernorm.weight" in self.tensors:
            x = op.add(x, self.norm(attended, prefix + "post_layernorm"))
            normed = self.norm(x, prefix + "pre_feedforward_layernorm")
            return op.add(
                x, self.norm(self.mlp(normed, prefix + "mlp."), prefix + "post_feedforward_layernorm")
            )
        x = op.add(x, self.scaled(attended, scale))
        normed = self.norm(x, prefix + "post_layernorm")
        return op.add(x, self.scaled(self.mlp(normed, prefix + "mlp."), scale))

    def norm(self, x: Node, name: str) -> Node:
        d = self.decoder
        fixed = name.rsplit(".", maxsplit=1)[-1] in d.family.fixed_epsilon
        epsilon = floats(FIXED_EPSILON if fixed else d.norm_epsilon)
        layer_norm = name + ".bias" in self.tensors
        if layer_norm:
            x = op.subtract(x, op.reduce_mean(x, ints([-1]), keep_dims=True))
        mean_square = op.reduce_mean(op.power(x, floats(2.0)), ints([-1]), keep_dims=True)
        unit = op.multiply(x, op.divide(floats(1.0), op.sqrt(op.add(mean_square, epsilon))))
        y = op.multiply(unit, floats(self.tensors.read(name + ".weight")))
        return op.add(y, floats(self.tensors.read(name + ".bias"))) if layer_norm else y

    def mlp(self, x: Node, prefix: str) -> Node:
        """TensorRT-LLM's ``fc`` is the activated branch (Hugging Face ``gate_proj``), its ``gate`` is ``up_proj``."""
        fc = self.linear(x, prefix + "fc")
        if self.decoder.family.fused_gate:
            up, gate = op.split(fc, ints(-1), 2).outputs()
            inner = op.multiply(up, self.activated(gate))
        elif prefix + "gate.weight" in self.tensors:
            inner = op.multiply(self.activated(fc), self.linear(x, prefix + "gate"))
        else:
            inner = self.activated(fc)
        return self.linear(inner, prefix + "proj")

    def activated(self, x: Node) -> Node:
        return op.swish(x) if self.decoder.activation == "silu" else op.gelu(x, "tanh")

    def scaled(self, x: Node, scale: float) -> Node:
        return x if scale == 1.0 else op.multiply(x, floats(scale))

    def capped(self, x: Node) -> Node:
        cap = self.decoder.logits_cap
        return x if cap is None else op.multiply(op.tanh(op.divide(x, floats(cap))), floats(cap))

    def attention(self, x: Node, index: int, prefix: str) -> Node:
        d = self.decoder
        widths = [d.num_heads * d.head_size, d.num_kv_heads * d.head_size, d.num_kv_heads * d.head_size]
        q, k, v = op.variadic_split(self.linear(x, prefix + "qkv"), ints(2), ints(widths)).outputs()
        q, k, v = (
            _heads(y, n, d.head_size) for y, n in ((q, d.num_heads), (k, d.num_kv_heads), (v, d.num_kv_heads))
        )
        if prefix + "q_layernorm.weight" in self.tensors:
            q, k = self.norm(q, prefix + "q_layernorm"), self.norm(k, prefix + "k_layernorm")
        if d.family.rotary:
            tables = (d.is_local(index) and self.local_rotary) or self.rotary
            q, k = self.rotate(q, *tables), self.rotate(k, *tables)
        step = self.cache_step(prefix)
        keys, values = (
            self.cached(self.stored(y, step), index, kind) for y, kind in ((k, "key"), (v, "value"))
        )
        scale = floats(d.attention_scale * step)
        y = op.scaled_dot_product_attention(q, keys, values, self.mask, scale, causal=False)
        y = self.scaled(y, step)
        y = op.reshape(op.transpose(y, ints([0, 2, 1, 3])), ints([0, 0, widths[0]]), special_zero=True)
        return self.linear(y, prefix + "dense")

    def cache_step(self, prefix: str) -> float:
        """Return what a value of 1 in the layer's KV cache stands for."""
        quantized = self.decoder.kv_cache_algo is not None
        return float(self.tensors.number(prefix + "kv_cache_scaling_factor")) if quantized else 1.0

    def stored(self, y: Node, step: float) -> Node:
        """Return keys or values as a quantized cache holds them: in steps, of which float16 holds all exactly."""
        algo = self.decoder.kv_cache_algo
        return y if algo is None else CACHED[algo](op.divide(y, floats(step)))

    def cached(self, y: Node, index: int, kind: str) -> Node:
        """Append to the layer's state and repeat each KV head for its group of query heads."""
        d = self.decoder
        empty = op.broadcast(floats(0.0), op.concat([self.batch, ints([d.num_kv_heads, 0, d.head_size])], 0))
        name = f"past_key_values.{index}.{kind}present.{index}.{kind}"
        shape = ov.PartialShape([-1, d.num_kv_heads, -1, d.head_size])
        past = op.gather(ov.opset6.read_value(empty, name, ov.Type.f32, shape), self.beam_idx, ints(0))
        present = op.concat([past, y], 2)
        self.sinks.append(ov.opset6.assign(present, name))
        group = ints([d.num_kv_heads, d.num_heads // d.num_kv_heads])
        length = op.unsqueeze(self.all_tokens, ints([0]))
        wide = op.concat([self.batch, group, length, ints([d.head_size])], 0)
        repeated = op.broadcast(op.unsqueeze(present, ints([2])), wide)
        flat = op.concat([self.batch, ints([d.num_heads, -1, d.head_size])], 0)
        return op.reshape(repeated, flat, special_zero=False)

    def rotary_tables(self, inverse_frequencies: Array) -> tuple[Node, Node]:
        """Return cosine and sine of shape ``(batch, 1, seq, rotated)``, both halves alike (NeoX order)."""
        frequencies = floats(inverse_frequencies.reshape(1, -1, 1))
        positions = op.convert(op.unsqueeze(self.position_ids, ints([1])), "f32")
        angles = op.transpose(
            op.matmul(frequencies, positions, transpose_a=False, transpose_b=False), ints([0, 2, 1])
        )
        both = op.concat([angles, angles], -1)
        scale = self.decoder.rotary_scale
        cosine, sine = self.scaled(op.cos(both), scale), self.scaled(op.sin(both), scale)
        return op.unsqueeze(cosine, ints([1])), op.unsqueeze(sine, ints([1]))

    def rotate(self, x: Node, cosine: Node, sine: Node) -> Node:
        """Rotate the first features of every head; the rest stays as it is."""
        rotated, size = 2 * len(self.decoder.inverse_frequencies), self.decoder.head_size
        half = rotated // 2
        first, second = _features(x, 0, half), _features(x, half, rotated)
        whole = x if rotated == size else op.concat([first, second], -1)
        swapped = op.concat([op.multiply(second, floats(-1.0)), first], -1)
        turned = op.add(op.multiply(whole, cosine), op.multiply(swapped, sine))
        return turned if rotated == size else op.concat([turned, _features(x, rotated, size)], -1)

    def causal_mask(self) -> Node:
        """Return ``(batch, 1, seq, all)``: 0 where a query may look, the lowest half-precision float elsewhere."""
        columns = op.range(ints(0), self.all_tokens, ints(1), "i64")
        past = op.subtract(self.all_tokens, self.new_tokens)
        rows = op.add(op.range(ints(0), self.new_tokens, ints(1), "i64"), past)
        causal = op.less_equal(op.unsqueeze(columns, ints([0])), op.unsqueeze(rows, ints([1])))
        present = op.convert(op.unsqueeze(self.attention_mask, ints([1, 2])), "boolean")
        return op.select(op.logical_and(causal, present), floats(0.0), floats(_HIDDEN))


def _parameter(name: str, shape: list[int], element_type: Any) -> Node:
    node = op.parameter(shape, element_type, name=name)
    node.output(0).set_names({name})
    return node


def _features(x: Node, start: int, stop: int) -> Node:
    return op.slice(x, ints([start]), ints([stop]), ints([1]), ints([3]))


def _heads(x: Node, count: int, size: int) -> Node:
    """Reshape ``(batch, seq, count * size)`` to ``(batch, count, seq, size)``."""
    return op.transpose(op.reshape(x, ints([0, 0, count, size]), special_zero=True), ints([0, 2, 1, 3]))
