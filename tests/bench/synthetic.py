"""Llama-shaped models of any size, with random weights: real headers and shapes, cheap contents."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from trtkit.checkpoint.safetensors import Array, SafetensorsWriter, TensorSpec

BLOCK_BYTES = 64 << 20
HEADS, KV_HEADS = 32, 8
_SHARD_BYTES = 1_000_000_000


@dataclass(frozen=True)
class Geometry:
    """Everything but the number of layers. Sides are multiples of 64, as INT8 weight-only asks for."""

    hidden: int
    intermediate: int
    vocab: int


_GEOMETRIES = {
    4_000_000_000: Geometry(4096, 14336, 64128),  # Llama 3 8B; half its layers, so half its vocabulary
    1_000_000_000: Geometry(2048, 5632, 32000),  # TinyLlama
    100_000_000: Geometry(1024, 3072, 32000),
    0: Geometry(512, 1024, 4096),
}
"""By the least size of a model that has it."""


@dataclass(frozen=True)
class SyntheticModel:
    """A model of about ``size_bytes``, in bfloat16."""

    size_bytes: int

    @property
    def geometry(self) -> Geometry:
        """Return the shapes that models of this size have."""
        return next(geometry for least, geometry in _GEOMETRIES.items() if self.size_bytes >= least)

    @property
    def layers(self) -> int:
        """Return the number of layers that comes closest to the size."""
        layer_bytes = sum(spec.nbytes for spec in self._layer(0))
        return max(1, round((self.size_bytes - sum(spec.nbytes for spec in self._ends())) / layer_bytes))

    def tensors(self) -> list[TensorSpec]:
        """Return all tensors in the order of their names in the index of a published model."""
        first, *last = self._ends()
        return [first, *(spec for layer in range(self.layers) for spec in self._layer(layer)), *last]

    @property
    def nbytes(self) -> int:
        """Return the size of all tensors."""
        return sum(spec.nbytes for spec in self.tensors())

    @property
    def replicated_bytes(self) -> int:
        """Return the size of what every rank holds whole: embedding and norms."""
        whole = ("embed_tokens.weight", "norm.weight")
        return sum(spec.nbytes for spec in self.tensors() if spec.name.endswith(whole))

    def write(self, folder: Path) -> None:
        """Write the folder as a publisher would, in shards; it is on disk when this returns."""
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self._config()))
        block = (
            np.random.default_rng(0).standard_normal(BLOCK_BYTES // 2, np.float32).astype(ml_dtypes.bfloat16)
        )
        shards = _shards(self.tensors())
        weight_map: dict[str, str] = {}
        for number, specs in enumerate(shards, 1):
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            weight_map |= dict.fromkeys((spec.name for spec in specs), name)
            with SafetensorsWriter(folder / name, specs) as writer:
                for spec in writer.order:
                    writer.write(spec, _repeat(block, math.prod(spec.shape)))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    def write_ranges(self, path: Path) -> None:
        """Write what calibration would: the largest magnitudes of each input and output channel."""
        chance = np.random.default_rng(1)
        # Layers of the same width have the same ranges, as those have that read the same input.
        inputs = {width: chance.uniform(1, 50, width).astype(np.float32) for width in self._widths()}
        found: dict[str, Array] = {}
        for spec in self.tensors():
            if spec.name.endswith("_proj.weight"):
                module, (rows, columns) = spec.name.removesuffix(".weight"), spec.shape
                found[f"{module}|x"] = inputs[columns]
                found[f"{module}|y"] = chance.uniform(1, 50, rows).astype(np.float32)
        specs = [TensorSpec(name, "float32", values.shape) for name, values in found.items()]
        with SafetensorsWriter(path, specs) as writer:
            for spec in writer.order:
                writer.write(spec, [found[spec.name]])

    def _widths(self) -> set[int]:
        return {spec.shape[-1] for spec in self.tensors()}

    def _ends(self) -> list[TensorSpec]:
        shape = (self.geometry.vocab, self.geometry.hidden)
        return [
            _bf16("model.embed_tokens.weight", *shape),
            _bf16("model.norm.weight", self.geometry.hidden),
            _bf16("lm_head.weight", *shape),
        ]

    def _layer(self, layer: int) -> list[TensorSpec]:
        hidden, inner = self.geometry.hidden, self.geometry.intermediate
        kv = hidden // HEADS * KV_HEADS
        shapes = {
            "input_layernorm": (hidden,),
            "mlp.down_proj": (hidden, inner),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "post_attention_layernorm": (hidden,),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.v_proj": (kv, hidden),
        }
        return [_bf16(f"model.layers.{layer}.{name}.weight", *shape) for name, shape in shapes.items()]

    def _config(self) -> dict[str, object]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.geometry.hidden,
            "intermediate_size": self.geometry.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "vocab_size": self.geometry.vocab,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "rope_theta": 500000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


def _bf16(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, "bfloat16", shape)


def _shards(tensors: list[TensorSpec]) -> list[list[TensorSpec]]:
    """Cut the list where a shard would become larger than 1 GB, and at least once."""
    limit = min(_SHARD_BYTES, sum(spec.nbytes for spec in tensors) // 2 + 1)
    shards: list[list[TensorSpec]] = [[]]
    for spec in tensors:
        if shards[-1] and sum(other.nbytes for other in shards[-1]) + spec.nbytes > limit:
            shards.append([])
        shards[-1].append(spec)
    return shards


def _repeat(block: Array, elements: int) -> Iterator[Array]:
    while elements > 0:
        yield block[:elements]
        elements -= len(block)
