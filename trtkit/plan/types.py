"""What a plan is: every number that later stages, and the proxy, go by. Frozen, printable, JSON-able."""

from __future__ import annotations

from dataclasses import dataclass

from trtkit.catalog.model import ModelConfig
from trtkit.errors import Problem


@dataclass(frozen=True)
class QuantPlan:
    """The contract's formats in TensorRT-LLM's terms (``quantization`` block of ``config.json``)."""

    weights: str
    kv_cache: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None


@dataclass(frozen=True)
class EngineLimits:
    """Effective shapes of the engine, all given or derived."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    tokens_per_block: int


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per rank and the KV pool that fits."""

    weights_bytes: int
    activation_bytes: int
    kv_bytes_per_token: int
    kv_blocks: int
    kv_tokens: int
    available_bytes: int | None
    """Memory of the target (one GPU, or the machine); None when unknown."""
    overhead_bytes: int = 0
    """What the runtime takes beside all that: CUDA context, libraries, buffers of communication."""

    @property
    def kv_pool_bytes(self) -> int:
        """Size of the whole KV pool."""
        return self.kv_tokens * self.kv_bytes_per_token


@dataclass(frozen=True)
class Zones:
    """The three bounds on what may be in flight at the engine; the proxy enforces them."""

    prefill_tokens: int
    """Un-prefilled prompt tokens; one request is always allowed when nothing is in flight."""
    kv_tokens: int
    """Tokens reserved in the KV pool (prompt + max_tokens, rounded up to blocks)."""
    decode_slots: int
    """Requests running at once."""


@dataclass(frozen=True)
class Plan:
    """A contract, resolved: nothing is left to guess."""

    name: str
    backend: str
    gpu: str | None
    tensor_parallel: int
    pipeline_parallel: int
    threads: int | None
    dtype: str
    model: ModelConfig
    quantization: QuantPlan
    limits: EngineLimits
    memory: MemoryPlan
    zones: Zones
    enable_block_reuse: bool
    warnings: tuple[Problem, ...] = ()
