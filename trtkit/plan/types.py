"""What a plan is: every number that later stages, and the proxy, go by. Frozen, printable, JSON-able."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    exclude: tuple[str, ...] | None = None
    """Patterns of layers that stay plain, instead of the loader's own list."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Patterns of layers, and the format that these have instead of ``weights``."""

    @property
    def formats(self) -> tuple[str, ...]:
        """Every format that some layer may have."""
        return tuple(dict.fromkeys((self.weights, *(name for _, name in self.overrides))))


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
    window_tokens: int | None = None
    """Tokens that layers with a sliding window keep of a sequence; None where all layers keep all of them."""
    window_share: float = 0.0
    """Part of the layers that have the window."""

    def part(self, parts: int) -> Zones:
        """Return one of so many equal parts, with room for one request at least."""
        prefill, kv, slots = (
            each // parts for each in (self.prefill_tokens, self.kv_tokens, self.decode_slots)
        )
        return replace(self, prefill_tokens=max(1, prefill), kv_tokens=kv, decode_slots=max(1, slots))

    def kv_need(self, tokens: int, tokens_per_block: int) -> int:
        """Return what a sequence takes of :attr:`kv_tokens`: whole blocks, and no more of them than windows keep.

        32,768 tokens where 22 of 26 layers keep 512: 4 / 26 x 32,768 + 22 / 26 x 512 = 5475.
        """
        whole = -(-tokens // tokens_per_block) * tokens_per_block
        if self.window_tokens is None or tokens <= self.window_tokens:
            return whole
        kept = -(-self.window_tokens // tokens_per_block) * tokens_per_block
        return whole - int(self.window_share * (whole - kept))

    def seen_tokens(self, context_tokens: float) -> float:
        """Return how many tokens a layer looks back on at the end of a context, on average over the layers."""
        if self.window_tokens is None:
            return context_tokens
        beyond = max(0.0, context_tokens - self.window_tokens)
        return context_tokens - self.window_share * beyond


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
    choices: tuple[tuple[int, ...], ...] | None = None
    """Tree of the draft tokens of Medusa and EAGLE, a path for each; None for the runtime's own."""
    gpu_weights_fraction: float | None = None
    """Share of the weights that stays on the GPU; None for all of them."""
    memory_fraction: float | None = None
    """vllm: share of all memory that the engine may take; llmapi: of what weights leave, that the pool may take; None
    for back ends that are told the pool's size alone."""

    def setting(self, name: str) -> Setting:
        """Return one of the settings."""
        return next(each for each in self.settings if each.name == name)


class Basis(str, enum.Enum):
    """What a speed is known from, best first."""

    MEASURED = "measured"
    """Of this very engine."""
    SILICON = "silicon"
    """A model of these sizes on this GPU in this format, composed of operators that were measured."""
    ROOFLINE = "roofline"
    """The data sheet, at the share of it that models reach on this GPU in this format."""
    GUESS = "guess"
    """The data sheet, at a share that was borrowed from another format or GPU."""


@dataclass(frozen=True)
class Workload:
    """The request that rates are computed for."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ClassPace:
    """What one class can expect, beside what it was promised."""

    name: str
    prompt_tokens: int
    """What :attr:`ttft_ms` is of: the class's longest prompt, unless another was asked for."""
    ttft_ms: float
    """Once admitted, with decoding requests beside it and no prompt before it: what waiting adds is a matter of the
    rate (:attr:`Pace.kept_requests_per_s`)."""
    tpot_ms: float
    total_ms: float
    """To the last token of the usual answer to the longest prompt that leaves room for it."""
    promised_ttft_ms: float | None = None
    promised_tpot_ms: float | None = None
    promised_deadline_ms: float | None = None

    @property
    def promises(self) -> tuple[tuple[str, float, float], ...]:
        """What was promised: its key in the contract, the time that it takes, the time that it may take."""
        rows = (
            ("ttft_ms", self.ttft_ms, self.promised_ttft_ms),
            ("tpot_ms", self.tpot_ms, self.promised_tpot_ms),
            ("deadline_ms", self.total_ms, self.promised_deadline_ms),
        )
        return tuple((key, takes, may) for key, takes, may in rows if may is not None)

    @property
    def kept(self) -> bool:
        """Whether all promises hold for a request that need not wait."""
        return all(takes <= may for _, takes, may in self.promises)

    @property
    def patience_ms(self) -> float:
        """How long a request may wait before its turn; without end where no time from its arrival is promised."""
        return min((may - takes for key, takes, may in self.promises if key != "tpot_ms"), default=math.inf)


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
    """The most: all slots are always taken, and whoever comes waits."""
    basis: Basis
    classes: tuple[ClassPace, ...] = ()
    bound_by: str | None = None
    """The class whose prompts leave so few decode slots; None where none does."""
    kept_requests_per_s: float | None = None
    """The most that may come, at random, so that the objective's share of them keeps every promise, waiting included;
    0 where a promise is broken without any; None where nothing is promised."""


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
    origins: Mapping[str, str] = field(default_factory=dict)
    """Why the values are what they are that the contract does not give."""
    warnings: tuple[Problem, ...] = ()
