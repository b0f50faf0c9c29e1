"""The shapes and names of a graph: what its writer, its compiler and its runner agree on.

Every batch row is a slot with a cache of its own, so that requests join and leave between two steps. A row takes
``seq`` new tokens at a step:

=====================  ============================  ===============================================================
input                  shape                         holds
=====================  ============================  ===============================================================
``input_ids``          int64 (batch, seq)            the new tokens
``position_ids``       int64 (batch, seq)            their positions: ``write_indices`` + 0, 1, 2 ...
``write_indices``      int64 (batch,)                tokens in the row's cache: where the new keys and values go
``last``               int64 (batch,)                index within ``seq`` whose logits are wanted
``past_key_N``         (batch, kv heads, capacity,   the caches of layer N, and ``past_value_N``; beyond a row's
                       head size)                    tokens they may hold any finite numbers
=====================  ============================  ===============================================================

Outputs are ``logits``, float32 (batch, vocab), and ``present_key_N`` and ``present_value_N``, of the inputs' shapes,
which may share their memory. A key at position j is seen from position p when j <= p, in a layer with a window also
p - j < window. A row without a request writes one token at its own length, which nothing looks at later.

With ``paged`` the caches are pools, ``pool_key_N`` and ``pool_value_N``, (blocks, tokens per block, kv heads, head
size), with outputs ``next_pool_key_N`` and ``next_pool_value_N``. In place of ``write_indices`` there are
``block_tables``, int64 (batch, blocks of a row), that say which block holds a row's tokens 0, 1, 2 ... of every
``tokens_per_block``. A row without a request names block 0, which no request may have, and position 0.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from trtkit.errors import InputError
from trtkit.plan.kv import MOST_SLOT_TOKENS

Dtype = Literal["float16", "bfloat16", "float32"]

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
WRITE_INDICES = "write_indices"
LAST = "last"
BLOCK_TABLES = "block_tables"
LOGITS = "logits"

ONNX_RUNTIME_SETTINGS = {"session.qdq_matmulnbits_accuracy_level": "1"}
"""Without this ONNX Runtime's CPU kernel for INT4 weights rounds activations to INT8."""

MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"


def past_key(layer: int, *, paged: bool = False) -> str:
    """Return the input that holds a layer's keys."""
    return f"{'pool' if paged else 'past'}_key_{layer}"


def past_value(layer: int, *, paged: bool = False) -> str:
    """Return the input that holds a layer's values."""
    return f"{'pool' if paged else 'past'}_value_{layer}"


def present_key(layer: int, *, paged: bool = False) -> str:
    """Return the output that holds a layer's keys after the step."""
    return f"{'next_pool' if paged else 'present'}_key_{layer}"


def present_value(layer: int, *, paged: bool = False) -> str:
    """Return the output that holds a layer's values after the step."""
    return f"{'next_pool' if paged else 'present'}_value_{layer}"


class Phase(str, enum.Enum):
    """An optimization profile, in the order in which engines have them."""

    PREFILL = "prefill"
    DECODE = "decode"


class Shapes(NamedTuple):
    """What an optimization profile says of one input."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


Profile = Mapping[str, Shapes]


class CacheSize(NamedTuple):
    """What a model's caches look like, whatever the number of tokens."""

    num_layers: int
    num_kv_heads: int
    head_size: int


@dataclass(frozen=True)
class GraphSpec:
    """What is asked of a graph beside the checkpoint."""

    slots: int
    """Rows that a decode step may have."""
    capacity_tokens: int
    """Tokens that one row's cache holds."""
    chunk_tokens: int
    """New tokens that a prefill step may have."""
    dtype: Dtype
    """Of activations, caches and scales."""
    paged: bool = False
    tokens_per_block: int = 32
    """Of the paged form."""
    pool_blocks: int = 0
    """Of the paged form; 0: as many as fill all slots, and block 0."""
    all_logits: bool = False
    """Logits of all positions, (batch, seq, vocab), as judges want them; there is no ``last`` then."""

    def __post_init__(self) -> None:
        """Raise :class:`InputError` on what cannot be built."""
        sizes = ("slots", "capacity_tokens", "chunk_tokens", "tokens_per_block")
        if wrong := [f"{name} is {getattr(self, name)}" for name in sizes if getattr(self, name) < 1]:
            raise InputError(f"{', '.join(wrong)}: a graph needs at least 1")
        if self.capacity_tokens > MOST_SLOT_TOKENS:
            message = f"capacity_tokens is {self.capacity_tokens}, and angles are tables of at most {MOST_SLOT_TOKENS}"
            raise InputError(message, hint="lower max_seq_len")
        if self.chunk_tokens > self.capacity_tokens:
            message = (
                f"chunk_tokens {self.chunk_tokens} is more than the {self.capacity_tokens} tokens of a slot"
            )
            raise InputError(message, hint="lower max_num_tokens or raise max_seq_len")
        if self.paged and self.capacity_tokens % self.tokens_per_block:
            message = f"capacity_tokens {self.capacity_tokens} is no multiple of {self.tokens_per_block}"
            raise InputError(message, hint="round max_seq_len up to whole blocks of tokens_per_block")

    @property
    def blocks_per_slot(self) -> int:
        """Width of a full row of ``block_tables``."""
        return self.capacity_tokens // self.tokens_per_block

    @property
    def blocks(self) -> int:
        """Blocks of the pool, block 0 included."""
        return self.pool_blocks or self.slots * self.blocks_per_slot + 1

    def cache_names(self, num_layers: int) -> tuple[tuple[str, str], ...]:
        """Return each cache's input and output, layer after layer, keys before values."""
        return tuple(
            (past(layer, paged=self.paged), present(layer, paged=self.paged))
            for layer in range(num_layers)
            for past, present in ((past_key, present_key), (past_value, present_value))
        )

    def cache_shape(self, cache: CacheSize, batch: int) -> tuple[int, ...]:
        """Return the shape of one cache input for a batch; that of a pool is the same for all."""
        if self.paged:
            return (self.blocks, self.tokens_per_block, cache.num_kv_heads, cache.head_size)
        return (batch, cache.num_kv_heads, self.capacity_tokens, cache.head_size)

    def profiles(self, cache: CacheSize) -> dict[Phase, Profile]:
        """Return the shapes of all inputs: prefill is one row of a chunk, decode one token of every row."""
        return {
            Phase.PREFILL: self._profile(cache, (1, 1), (1, self.chunk_tokens)),
            Phase.DECODE: self._profile(cache, (1, 1), (self.slots, 1)),
        }

    def _profile(self, cache: CacheSize, least: tuple[int, int], most: tuple[int, int]) -> Profile:
        low, high = self._shapes(cache, *least, 1), self._shapes(cache, *most, self.blocks_per_slot)
        return {name: Shapes(low[name], high[name], high[name]) for name in low}

    def _shapes(self, cache: CacheSize, batch: int, seq: int, blocks: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            INPUT_IDS: (batch, seq),
            POSITION_IDS: (batch, seq),
        }
        if not self.all_logits:
            shapes[LAST] = (batch,)
        if self.paged:
            shapes[BLOCK_TABLES] = (batch, blocks)
        else:
            shapes[WRITE_INDICES] = (batch,)
        pasts = (past for past, _ in self.cache_names(cache.num_layers))
        return shapes | dict.fromkeys(pasts, self.cache_shape(cache, batch))


class LinearForm(str, enum.Enum):
    """What a linear layer multiplies."""

    FLOAT = "float"
    INT8 = "int8"
    """INT8 with INT8."""
    INT8_WEIGHTS = "int8-weights"
    FP8 = "fp8"
    """FP8 with FP8."""
    INT4_WEIGHTS = "int4-weights"


@dataclass(frozen=True)
class GraphFacts:
    """What was written. Nodes bear the names of the checkpoint's layers, after which a compiler's walk can look."""

    model: Path
    data: Path
    cache: CacheSize
    vocab_size: int
    linears: Mapping[str, LinearForm]
    """Name of every ``MatMul`` with a weight (``transformer.layers.0.attention.qkv``) to its form."""
    attentions: tuple[str, ...]
    """Names of the ``Attention`` nodes."""
    rotaries: tuple[str, ...]
    """Names of the ``RotaryEmbedding`` nodes."""
    cache_updates: tuple[str, ...]
    """Names of the nodes that write keys or values: ``TensorScatter``, in the paged form ``ScatterND``."""
    data_bytes: int
    paged: bool = False
    """Whether caches are blocks of a pool."""
