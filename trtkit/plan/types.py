"""What a plan is: every number that later stages, and the proxy, go by. Frozen, printable, JSON-able."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtkit.catalog.gpus import Gpu
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.errors import Problem


@dataclass(frozen=True)
class QuantPlan:
    """The contract's formats in TensorRT-LLM's terms (``quantization`` block of ``config.json``)."""

    weights: str
    kv_cache: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    smoothquant: str | None = None
    alpha: float | str | None = None
    group_size: int | None = None
    kv_scale: str | None = None
    """As the contract has them; None for what the format does by itself."""


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
class Setting:
    """A setting that the builder or the runtime makes something else of, or that something depends on."""

    name: str
    asked: str
    effective: str
    reason: str = ""


@dataclass(frozen=True)
class Target:
    """What a plan for GPUs has beside the rest."""

    gpu: Gpu
    ranks: Parallelism
    trtllm: str | None
    """Release line of TensorRT-LLM; None for back ends that are not part of it."""
    image: str | None
    """The newest NGC image of that line."""
    max_beam_width: int
    build_flags: Mapping[str, bool | int | str]
    """Flags of ``trtllm-build`` that the contract gives, or that what it gives comes to."""
    chunked_context: bool
    """Whether long prompts are prefilled in pieces, after everything that may switch it off."""
    max_attention_window: tuple[int, ...] | None
    """Windows of the layers, repeated over all of them: the runtime's setting; None without windows."""
    settings: tuple[Setting, ...]
    sms: tuple[int, ...] = ()
    """Compute capabilities that an engine of ``rtx`` is made for; empty for other back ends."""
    lookahead: tuple[int, int, int] | None = None
    """Window, n-gram and verification set of lookahead decoding; None for no such."""

    def setting(self, name: str) -> Setting:
        """Return one of the settings."""
        return next(each for each in self.settings if each.name == name)


@dataclass(frozen=True)
class Workload:
    """The request that rates are computed for."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ClassPace:
    """What one class can expect of its longest prompt, beside what it was promised."""

    name: str
    ttft_ms: float
    """Once admitted, with decoding requests beside it and no prompt before it."""
    tpot_ms: float
    promised_ttft_ms: float | None
    promised_tpot_ms: float | None

    @property
    def kept(self) -> bool:
        """Whether both promises hold."""
        ttft, tpot = self.promised_ttft_ms, self.promised_tpot_ms
        return (ttft is None or self.ttft_ms <= ttft) and (tpot is None or self.tpot_ms <= tpot)


@dataclass(frozen=True)
class Pace:
    """Speed before there is hardware."""

    source: str
    """Where the numbers come from; nothing here was measured on this engine unless it says so."""
    workload: Workload
    prefill_tokens_per_s: float
    step_ms: float
    """One token for each of :attr:`batch` requests."""
    batch: int
    """Requests that decode at once: decode slots, or fewer where the KV pool ends before."""
    requests_per_s: float
    classes: tuple[ClassPace, ...]


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
    target: Target | None = None
    """None for the CPU."""
    pace: Pace | None = None
    """None where nothing is known of the speed."""
    warnings: tuple[Problem, ...] = ()
