"""How weights and KV cache are stored, what is read to find that, and how far it may be from the source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.contract.scalars import Fraction, Pattern, Text
from trtkit.contract.section import Section


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


class LmEval(Section):
    """Tasks of EleutherAI's lm-eval (the extra lm-eval) that source and quantized model are asked both."""

    tasks: Annotated[list[Text], Field(min_length=1, examples=[["arc_easy"]])]
    """Tasks, groups or tags of the kinds multiple_choice and loglikelihood; each is judged as one."""
    folder: Text | None = None
    """YAML files of tasks of one's own, with their data (dataset_path: json), relative to the contract."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Questions of each task at most; left out, all."""
    num_fewshot: Annotated[int, Field(ge=0)] | None = None
    """Examples in front of each question; left out, what the task says."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1234
    """Decides which examples."""
    max_loss: Fraction | None = None
    """Largest loss of any score (of 0 to 1) against the source; left out, it is only reported."""

    @model_validator(mode="after")
    def _each_once(self) -> LmEval:
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError("tasks names one twice")
        return self


class Gate(Section):
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
    lm_eval: LmEval | None = None
    """Tasks of lm-eval; left out, none."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What both are computed in; bfloat16 for models whose float32 copy does not fit, and without a floor."""

    @model_validator(mode="after")
    def _accuracy_needs_questions(self) -> Gate:
        if self.min_accuracy is not None and self.task_file is None:
            raise ValueError("min_accuracy needs questions: name a task_file")
        return self


class Calibration(Section):
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


class Quantization(Section):
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
