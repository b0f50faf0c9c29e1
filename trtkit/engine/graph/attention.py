"""Attention: rotary embedding, cache, mask, and one ``Attention`` node for every layer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trtkit.engine.decoder import Decoder
from trtkit.engine.graph.cache import Cache
from trtkit.engine.graph.linear import Linears
from trtkit.engine.graph.nodes import Graph, Value
from trtkit.engine.graph.norm import Norms
from trtkit.engine.graph.spec import GraphSpec
from trtkit.engine.tensors import Tensors


@dataclass
class Attention:
    """Adds the attention of one decoder's layers to a graph."""

    graph: Graph
    decoder: Decoder
    spec: GraphSpec
    tensors: Tensors
    linear: Linears
    norm: Norms
    cache: Cache
    positions: Value
    names: list[str] = field(default_factory=list)
    """Of the ``Attention`` nodes."""
    rotaries: list[str] = field(default_factory=list)
    """Of the ``RotaryEmbedding`` nodes."""
    _masks: dict[int | None, Value] = field(default_factory=dict)
    _tables: dict[bool, tuple[Value, Value]] = field(default_factory=dict)

    def __call__(self, x: Value, index: int, name: str) -> Value:
        """Return what a layer's attention gives for normed hidden states (batch, seq, hidden)."""
        graph, d = self.graph, self.decoder
        q, k, v = self._heads(self.linear(x, name + ".qkv"), name)
        if name + ".q_layernorm.weight" in self.tensors:
            q, k = self.norm(q, name + ".q_layernorm"), self.norm(k, name + ".k_layernorm")
        q, k, v = (graph.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, k, v))
        if d.family.rotary:
            q, k = (
                self._rotated(each, index, f"{name}/rotary_{part}") for each, part in ((q, "q"), (k, "k"))
            )
        keys, values = self.cache.append(index, k, v)
        self.names.append(name)
        attended = graph.node(
            "Attention", q, keys, values, self._mask(d.window(index)), name=name, scale=d.attention_scale
        )
        rows = graph.node("Transpose", attended, perm=[0, 2, 1, 3])
        flat = graph.node("Reshape", rows, graph.ints(0, 0, d.num_heads * d.head_size))
        return self.linear(flat, name + ".dense")

    def _heads(self, qkv: Value, name: str) -> tuple[Value, Value, Value]:
        """Return queries, keys and values as (batch, seq, heads, head size)."""
        graph, d = self.graph, self.decoder
        counts = (d.num_heads, d.num_kv_heads, d.num_kv_heads)
        sizes = graph.ints(*(count * d.head_size for count in counts))
        parts = graph.nodes_of("Split", [qkv, sizes], [f"{name}/{part}" for part in "qkv"], axis=-1)
        q, k, v = (
            graph.node("Reshape", part, graph.ints(0, 0, count, d.head_size))
            for part, count in zip(parts, counts, strict=True)
        )
        return q, k, v

    def _rotated(self, heads: Value, index: int, name: str) -> Value:
        """Rotate the first features of every head; the rest stays as it is."""
        d = self.decoder
        cosine, sine = self._rotary_tables(local=d.is_local(index))
        rotated = 2 * len(d.inverse_frequencies)
        part = {} if rotated == d.head_size else {"rotary_embedding_dim": rotated}
        self.rotaries.append(name)
        return self.graph.node("RotaryEmbedding", heads, cosine, sine, self.positions, name=name, **part)

    def _rotary_tables(self, *, local: bool) -> tuple[Value, Value]:
        """Return cosines and sines of all positions, (capacity, rotated / 2)."""
        if local in self._tables:
            return self._tables[local]
        d = self.decoder
        frequencies = (
            d.local_frequencies if local and d.local_frequencies is not None else d.inverse_frequencies
        )
        angles = np.outer(np.arange(self.spec.capacity_tokens), frequencies)
        kind = "local_" if local else ""
        table = (
            self._table(np.cos(angles) * d.rotary_scale, kind + "cosines"),
            self._table(np.sin(angles) * d.rotary_scale, kind + "sines"),
        )
        self._tables[local] = table
        return table

    def _table(self, values: npt.NDArray[np.float64], name: str) -> Value:
        return self.graph.vector(values.astype(np.float32), name)

    def _mask(self, window: int | None) -> Value:
        """Return whether a query may see a key, (batch, 1, seq, keys)."""
        if window in self._masks:
            return self._masks[window]
        graph, columns = self.graph, self.cache.columns()
        rows = graph.node("Unsqueeze", self.positions, graph.ints(1, 3))
        mask = graph.node("LessOrEqual", columns, rows)
        if window is not None:
            far = graph.node("Sub", rows, graph.ints(window))
            mask = graph.node("And", mask, graph.node("Greater", columns, far))
        self._masks[window] = mask
        return mask
