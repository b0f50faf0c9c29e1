"""Norms: by the root of the mean square, or (where there is a bias) by mean and variance."""

from __future__ import annotations

import numpy as np

from trtkit.engine.decoder import FIXED_EPSILON, Decoder
from trtkit.engine.graph.nodes import Graph, Value
from trtkit.engine.tensors import Tensors


class Norms:
    """Adds norms over the last axis to a graph."""

    def __init__(self, graph: Graph, decoder: Decoder, tensors: Tensors) -> None:
        self._graph, self._decoder, self._tensors = graph, decoder, tensors

    def __call__(self, x: Value, name: str) -> Value:
        """Return ``x`` normed by the layer ``name``; sums are taken in float32."""
        d = self._decoder
        fixed = name.rsplit(".", maxsplit=1)[-1] in d.family.fixed_epsilon
        settings = {"axis": -1, "epsilon": FIXED_EPSILON if fixed else d.norm_epsilon}
        weight = self._vector(name + ".weight")
        if name + ".bias" in self._tensors:
            bias = self._vector(name + ".bias")
            return self._graph.node("LayerNormalization", x, weight, bias, name=name, **settings)
        return self._graph.node("RMSNormalization", x, weight, name=name, **settings)

    def _vector(self, name: str) -> Value:
        return self._graph.vector(self._tensors.read(name).astype(np.float32), name)
