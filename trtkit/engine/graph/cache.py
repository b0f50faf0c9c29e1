"""KV caches in the graph: one of its own for every row, which is the default, or blocks of a common pool.

A slot's cache is written by ``TensorScatter``, which compilers turn into an update in place, and read as it lies; a
step's attention always covers the whole capacity of a slot. Blocks take no more than what requests need, and
attention covers no more than the blocks that are named; but ``ScatterND`` gives a new pool, and ``Gather`` copies a
row's blocks together in every layer and step. With TensorRT, whose own paged attention is no operator of ONNX, that
costs more than it saves: slots are the default, and blocks are for many slots that are seldom full.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from trtkit.engine.graph import spec as names
from trtkit.engine.graph.nodes import Graph, Value
from trtkit.engine.graph.spec import CacheSize, GraphSpec


class Cache(Protocol):
    """Keys and values of all layers."""

    def append(self, layer: int, keys: Value, values: Value) -> tuple[Value, Value]:
        """Add those of the new tokens, (batch, kv heads, seq, head size); return those of all, in that order."""

    def columns(self) -> Value:
        """Return the positions of all keys, int64, as a vector."""


class SlotCache:
    """A row's keys lie one after another: that of position j in column j."""

    def __init__(self, graph: Graph, spec: GraphSpec, size: CacheSize) -> None:
        self._graph, self._spec = graph, spec
        self._shape = ("batch", size.num_kv_heads, spec.capacity_tokens, size.head_size)
        self._write_indices = graph.input(names.WRITE_INDICES, "int64", "batch")

    def append(self, layer: int, keys: Value, values: Value) -> tuple[Value, Value]:
        """Write behind what is there."""
        return (
            self._scatter(names.past_key(layer), keys, names.present_key(layer)),
            self._scatter(names.past_value(layer), values, names.present_value(layer)),
        )

    def columns(self) -> Value:
        """Return 0, 1, 2 ... up to the capacity."""
        return self._graph.constant(np.arange(self._spec.capacity_tokens))

    def _scatter(self, past: str, new: Value, present: str) -> Value:
        graph = self._graph
        graph.input(past, graph.dtype, *self._shape)
        graph.output(present, graph.dtype, *self._shape)
        return graph.node("TensorScatter", past, new, self._write_indices, name=present, axis=2)


class PagedCache:
    """Position j lies in block j // size of the row's table, at place j % size."""

    def __init__(self, graph: Graph, spec: GraphSpec, size: CacheSize, positions: Value) -> None:
        self._graph, self._spec, self._size = graph, spec, size
        self._shape = spec.cache_shape(size, 1)
        self._tables = graph.input(names.BLOCK_TABLES, "int64", "batch", "blocks")
        block_tokens = graph.ints(spec.tokens_per_block)
        number = graph.node("Div", positions, block_tokens)
        block = graph.node("GatherElements", self._tables, number, axis=1)
        place = graph.node("Sub", positions, graph.node("Mul", number, block_tokens))
        pair = [graph.node("Unsqueeze", each, graph.ints(-1)) for each in (block, place)]
        self._places = graph.node("Concat", *pair, axis=-1)

    def append(self, layer: int, keys: Value, values: Value) -> tuple[Value, Value]:
        """Write into the rows' blocks, and put these together."""
        return (
            self._scatter(names.past_key(layer, paged=True), keys, names.present_key(layer, paged=True)),
            self._scatter(
                names.past_value(layer, paged=True), values, names.present_value(layer, paged=True)
            ),
        )

    def columns(self) -> Value:
        """Return 0, 1, 2 ... up to what the named blocks hold."""
        graph, spec = self._graph, self._spec
        width = graph.node("Shape", self._tables, start=1)
        length = graph.node("Mul", width, graph.ints(spec.tokens_per_block))
        return graph.node("Slice", graph.constant(np.arange(spec.capacity_tokens)), graph.ints(0), length)

    def _scatter(self, pool: str, new: Value, changed: str) -> Value:
        graph, size = self._graph, self._size
        graph.input(pool, graph.dtype, *self._shape)
        graph.output(changed, graph.dtype, *self._shape)
        by_token = graph.node("Transpose", new, perm=[0, 2, 1, 3])
        graph.node("ScatterND", pool, self._places, by_token, name=changed)
        blocks = graph.node("Gather", changed, self._tables, axis=0)
        row = graph.node("Reshape", blocks, graph.ints(0, -1, size.num_kv_heads, size.head_size))
        return graph.node("Transpose", row, perm=[0, 2, 1, 3])
