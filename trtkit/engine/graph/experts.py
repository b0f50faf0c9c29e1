"""Mixtures of experts with operators that compilers have: every expert runs for every token, and the router weighs.

What the chosen experts give is exact; the others are weighed with 0. A prompt costs as many products as there are
experts, where a kernel for mixtures costs as many as are chosen. A full batch reads all experts either way.
"""

from __future__ import annotations

from trtkit.catalog.model import Moe
from trtkit.engine.graph.linear import Linears
from trtkit.engine.graph.nodes import Graph, Tensor, Value
from trtkit.engine.graph.spec import LinearForm
from trtkit.engine.graph.weights import stored_pieces
from trtkit.engine.tensors import Tensors


class Experts:
    """Adds the mixtures of experts of one checkpoint to a graph."""

    def __init__(self, graph: Graph, tensors: Tensors, linear: Linears, moe: Moe) -> None:
        self._graph, self._tensors, self._linear, self._moe = graph, tensors, linear, moe

    def __call__(self, x: Value, prefix: str) -> Value:
        """Return what the experts give for normed hidden states (batch, seq, hidden)."""
        routed = self._routed(x, prefix)
        if prefix + "shared_expert.fc.weight" not in self._tensors:
            return routed
        graph, linear = self._graph, self._linear
        inner = self._gated(linear(x, prefix + "shared_expert.fc"), prefix + "shared_expert.fc")
        gate = graph.node("Sigmoid", linear.plain(x, prefix + "shared_expert_gate"))
        return graph.node(
            "Add", routed, graph.node("Mul", gate, linear(inner, prefix + "shared_expert.proj"))
        )

    def _routed(self, x: Value, prefix: str) -> Value:
        graph = self._graph
        each = graph.node("Unsqueeze", x, graph.ints(1))
        inner = self._gated(self._product(each, prefix + "fc"), prefix + "fc")
        outputs = self._product(inner, prefix + "proj")
        weighed = graph.node("Mul", outputs, self._weights(x, prefix))
        return graph.node("ReduceSum", weighed, graph.ints(1), keepdims=0)

    def _weights(self, x: Value, prefix: str) -> Value:
        """Return each expert's part, (batch, experts, seq, 1); routers are float32, whatever the graph is."""
        graph, name = self._graph, prefix + "router"
        info = self._tensors.info(name + ".weight", "float32")
        table = Tensor(info.name, "float32", info.shape)
        weight = graph.streamed(lambda: stored_pieces(info, "float32"), table)
        turned = graph.node("Transpose", weight, perm=[1, 0])
        scores = graph.node("MatMul", graph.node("Cast", x, to="float32"), turned, name=name)
        shares = graph.node("Softmax", scores, axis=-1)
        best, chosen = graph.nodes_of(
            "TopK", [shares, graph.ints(self._moe.experts_per_token)], [name + "/best", name + "/chosen"]
        )
        if self._moe.renormalize:
            best = graph.node("Div", best, graph.node("ReduceSum", best, graph.ints(-1), keepdims=1))
        nothing = graph.node("Sub", shares, shares)
        kept = graph.node("ScatterElements", nothing, chosen, best, axis=-1)
        by_expert = graph.node("Transpose", graph.node("Cast", kept, to=graph.dtype), perm=[0, 2, 1])
        return graph.node("Unsqueeze", by_expert, graph.ints(-1))

    def _product(self, x: Value, name: str) -> Value:
        """Multiply (batch, 1 or experts, seq, in) with every expert's (out, in)."""
        graph, info = self._graph, self._tensors.info(name + ".weight")
        table = Tensor(info.name, graph.dtype, info.shape)
        weight = graph.streamed(lambda: stored_pieces(info, graph.dtype), table)
        turned = graph.node("Transpose", weight, name=name + "/transposed", perm=[0, 2, 1])
        self._linear.forms[name] = LinearForm.FLOAT
        return graph.node("MatMul", x, turned, name=name)

    def _gated(self, fc: Value, name: str) -> Value:
        """Multiply the first half of the columns with the activated second half."""
        graph = self._graph
        up, gate = graph.nodes_of("Split", [fc], [name + "/up", name + "/gate"], axis=-1, num_outputs=2)
        return graph.node("Mul", up, graph.node("Mul", gate, graph.node("Sigmoid", gate)))
