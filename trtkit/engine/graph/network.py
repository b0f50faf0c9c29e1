"""The decoder as a graph: embedding, layers, and the head over the positions that are sampled."""

from __future__ import annotations

import numpy as np

from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.checkpoint.trtllm_config import read_config
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.decoder import Decoder
from trtkit.engine.graph import spec as names
from trtkit.engine.graph.attention import Attention
from trtkit.engine.graph.cache import Cache, PagedCache, SlotCache
from trtkit.engine.graph.experts import Experts
from trtkit.engine.graph.linear import Linears
from trtkit.engine.graph.nodes import Graph, Tensor, Value
from trtkit.engine.graph.norm import Norms
from trtkit.engine.graph.spec import CacheSize, GraphSpec, LinearForm
from trtkit.engine.graph.weights import stored_pieces
from trtkit.engine.tensors import Tensors

_EMBEDDING = "transformer.vocab_embedding.weight"
_POSITIONS = "transformer.position_embedding.weight"
HEAD = "lm_head"


class Network:
    """One build: the inputs, then layer after layer."""

    def __init__(self, checkpoint: TrtllmCheckpoint, spec: GraphSpec) -> None:
        self.graph = Graph(spec.dtype, checkpoint.folder)
        self.spec, self.config = spec, checkpoint.config
        self.decoder = Decoder.from_config(checkpoint.config)
        model = read_config(checkpoint.config, path=checkpoint.folder / CHECKPOINT_CONFIG)
        self.vocab_size, moe = model.vocab_size, model.moe
        self.cache = CacheSize(self.decoder.num_layers, self.decoder.num_kv_heads, self.decoder.head_size)
        self.tensors = Tensors(checkpoint)
        self.norm = Norms(self.graph, self.decoder, self.tensors)
        self.linear = Linears(self.graph, self.tensors, checkpoint.config)
        self.experts = Experts(self.graph, self.tensors, self.linear, moe) if moe else None
        self.input_ids = self.graph.input(names.INPUT_IDS, "int64", "batch", "seq")
        self.positions = self.graph.input(names.POSITION_IDS, "int64", "batch", "seq")
        self.attention = Attention(
            self.graph,
            self.decoder,
            spec,
            self.tensors,
            self.linear,
            self.norm,
            self._cache(),
            self.positions,
        )

    def _cache(self) -> Cache:
        if self.spec.paged:
            return PagedCache(self.graph, self.spec, self.cache, self.positions)
        return SlotCache(self.graph, self.spec, self.cache)

    def build(self) -> Graph:
        """Add everything; every tensor of the checkpoint has to be of use."""
        hidden = self.embedding()
        for index in range(self.decoder.num_layers):
            hidden = self.layer(hidden, f"transformer.layers.{index}.", index)
        self.head(hidden)
        self.tensors.close()
        return self.graph

    def embedding(self) -> Value:
        """Return the hidden states of the tokens; learned positions are added."""
        hidden = self.graph.node("Gather", self.table(_EMBEDDING), self.input_ids, axis=0)
        hidden = self._scaled(hidden, self.decoder.embedding_scale)
        if _POSITIONS not in self.tensors:
            return hidden
        return self._added(hidden, self.graph.node("Gather", self.table(_POSITIONS), self.positions, axis=0))

    def table(self, name: str) -> Value:
        """Return a stored table as it lies."""
        info, dtype = self.tensors.info(name), self.graph.dtype
        return self.graph.streamed(lambda: stored_pieces(info, dtype), Tensor(name, dtype, info.shape))

    def head(self, hidden: Value) -> None:
        """Project to the vocabulary, in float32 from there on."""
        graph, d = self.graph, self.decoder
        if not self.spec.all_logits:
            last = graph.node("Unsqueeze", graph.input(names.LAST, "int64", "batch"), graph.ints(-1))
            hidden = graph.node("GatherND", hidden, last, batch_dims=1)
        normed = self._scaled(self.norm(hidden, "transformer.ln_f"), d.logits_scale)
        if self.is_tied():
            weight = graph.node("Transpose", _EMBEDDING, name=HEAD + "/transposed", perm=[1, 0])
            logits = graph.node("MatMul", normed, weight, name=HEAD)
            self.linear.forms[HEAD] = LinearForm.FLOAT
        else:
            logits = self.linear.plain(normed, HEAD)
        positions = ("seq",) if self.spec.all_logits else ()
        graph.output(names.LOGITS, "float32", "batch", *positions, self.vocab_size)
        if d.logits_cap is None:
            graph.node("Cast", logits, name=names.LOGITS, to="float32")
            return
        cap = graph.constant(np.array(d.logits_cap, np.float32))
        capped = graph.node("Tanh", graph.node("Div", graph.node("Cast", logits, to="float32"), cap))
        graph.node("Mul", capped, cap, name=names.LOGITS)

    def is_tied(self) -> bool:
        """Return whether the head holds the embedding's bytes, as converted checkpoints of tied models do."""
        if not self.config.get("tie_word_embeddings"):
            return False
        head, embedding = self.tensors.info(HEAD + ".weight"), self.tensors.info(_EMBEDDING)
        pairs = zip(head.chunks(), embedding.chunks(), strict=True)
        return head.shape == embedding.shape and all(a.tobytes() == b.tobytes() for a, b in pairs)

    def layer(self, x: Value, prefix: str, index: int) -> Value:
        """Run one layer: in a row, side by side, or (Gemma 2 and 3) with norms behind attention and MLP too."""
        normed = self.norm(x, prefix + "input_layernorm")
        attended = self.attention(normed, index, prefix + "attention")
        if self.decoder.family.parallel and prefix + "post_layernorm.weight" not in self.tensors:
            for name in ("post_attention_layernorm", "mlp_layernorm"):
                if prefix + name + ".weight" in self.tensors:
                    normed = self.norm(x, prefix + name)
            return self._added(self._added(x, attended), self.mlp(normed, prefix + "mlp."))
        scale = self.decoder.residual_scale
        if prefix + "pre_feedforward_layernorm.weight" in self.tensors:
            x = self._added(x, self.norm(attended, prefix + "post_layernorm"))
            inner = self.mlp(self.norm(x, prefix + "pre_feedforward_layernorm"), prefix + "mlp.")
            return self._added(x, self.norm(inner, prefix + "post_feedforward_layernorm"))
        x = self._added(x, self._scaled(attended, scale))
        normed = self.norm(x, prefix + "post_layernorm")
        return self._added(x, self._scaled(self.mlp(normed, prefix + "mlp."), scale))

    def mlp(self, x: Value, prefix: str) -> Value:
        """TensorRT-LLM's ``fc`` is the activated branch (Hugging Face ``gate_proj``), its ``gate`` is ``up_proj``."""
        if self.experts is not None:
            return self.experts(x, prefix)
        fc = self.linear(x, prefix + "fc")
        if self.decoder.family.fused_gate:
            halves = [prefix + "fc/up", prefix + "fc/gate"]
            up, gate = self.graph.nodes_of("Split", [fc], halves, axis=-1, num_outputs=2)
            inner = self.graph.node("Mul", up, self._activated(gate))
        elif prefix + "gate.weight" in self.tensors:
            inner = self.graph.node("Mul", self._activated(fc), self.linear(x, prefix + "gate"))
        else:
            inner = self._activated(fc)
        return self.linear(inner, prefix + "proj")

    def _activated(self, x: Value) -> Value:
        if self.decoder.activation == "silu":
            return self.graph.node("Mul", x, self.graph.node("Sigmoid", x))
        return self.graph.node("Gelu", x, approximate="tanh")

    def _added(self, x: Value, y: Value) -> Value:
        return self.graph.node("Add", x, y)

    def _scaled(self, x: Value, scale: float) -> Value:
        return x if scale == 1.0 else self.graph.node("Mul", x, self.graph.number(scale))
