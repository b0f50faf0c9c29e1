"""What describes an architecture: configuration keys, tensor rules, what the engine can honour."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtkit.catalog.model import ModelConfig


class Dim(enum.Enum):
    """Symbolic sizes of tensors; all are global (before any split)."""

    ONE = "1"
    HIDDEN = "hidden"
    HEAD = "head_size"
    Q = "num_heads * head_size"
    KV = "num_kv_heads * head_size"
    QKV = "Q + 2 * KV"
    INTERMEDIATE = "intermediate"
    GATE_UP = "2 * intermediate"
    EXPERTS = "num_experts"
    EXPERT_INTERMEDIATE = "width of one expert"
    SHARED_INTERMEDIATE = "width of the shared expert"
    VOCAB = "vocab"
    POSITIONS = "max_position_embeddings"


class Split(enum.Enum):
    """How tensor parallelism divides a tensor."""

    NONE = "replicated on every rank"
    ROWS = "output rows are divided (column parallel)"
    COLUMNS = "input columns are divided (row parallel)"
    QKV = "rows are divided by heads inside each of Q, K and V"
    HALVES = "two halves of rows, each of them divided"
    VOCAB = "rows are padded to a multiple of the ranks, then divided"
    EMBEDDING = "like VOCAB with parallel embedding, otherwise replicated"


class Arrange(enum.Enum):
    """How the rows of the sources become the rows of the target."""

    STACKED = "one source after the other"
    SWAPPED = "the second half of the source before the first"
    TRANSPOSED = "the columns of the source are the rows (Conv1D)"
    PER_GROUP = (
        "the source holds, KV head by KV head, its query heads, k and v; the target all Q, then K, then V"
    )


class When(enum.Enum):
    """Which models have a tensor."""

    ALWAYS = "always"
    ATTN_BIAS = "attn_bias"
    MLP_BIAS = "mlp_bias"
    SHARED_EXPERT = "shared expert"
    TIED = "tied"
    UNTIED = "untied"


@dataclass(frozen=True)
class Source:
    """One tensor of the Hugging Face checkpoint; ``{layer}`` and ``{expert}`` in the name count from 0."""

    name: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class TensorRule:
    """One tensor of the TensorRT-LLM checkpoint and the sources that it is made of.

    Sources with ``{expert}`` in their names are taken for every expert; the target gets a leading dimension.
    """

    target: str
    sources: tuple[Source, ...]
    split: Split = Split.NONE
    when: When = When.ALWAYS
    arrange: Arrange = Arrange.STACKED
    only: Mapping[str, Any] = field(default_factory=dict)
    """Values that ``ModelConfig.numerics`` must have for the tensor to be there."""
    plus: float = 0.0
    """Added to every element, in float32."""
    dtype: str | None = None
    """Data type that does not follow the checkpoint's."""
    quantizable: bool | None = None
    """Whether quantization replaces it, where that is not what its kind says: layers left plain, a quantized head."""

    @property
    def per_layer(self) -> bool:
        """Whether the rule stands for one tensor in every layer."""
        return "{layer}" in self.target

    @property
    def on_last_stage(self) -> bool:
        """Whether, being in no layer, it belongs to the last rank of the pipeline, not to the first."""
        return not self.target.endswith("embedding.weight")

    @property
    def per_expert(self) -> bool:
        """Whether the target holds all experts, one after another."""
        return "{expert}" in self.sources[0].name

    @property
    def is_linear(self) -> bool:
        """Whether the tensor is the weight of a linear layer that quantization replaces."""
        if self.quantizable is not None:
            return self.quantizable
        splits = (Split.ROWS, Split.COLUMNS, Split.QKV, Split.HALVES)
        return self.split in splits and self.target.endswith(".weight")


@dataclass(frozen=True)
class RopeType:
    """Parameters of one kind of rotary scaling."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Parameters that TensorRT-LLM does not read: only these values mean the same without them."""
    lists: tuple[str, ...] = ()
    """Required parameters with one positive number for each pair of rotated dimensions."""
    together: tuple[str, ...] = ()
    """Optional parameters of which transformers ignores each without the others, and TensorRT-LLM does not."""
    original_default: int | None = None
    """Length that is extended when ``config.json`` does not say it beside the block; None without one."""


REQUIRED: Any = object()
"""Default of a field that has none."""


@dataclass(frozen=True)
class Numeric:
    """A field that only some families have; it is written under its TensorRT-LLM key."""

    keys: tuple[str, ...]
    """Spellings in ``config.json``."""
    default: Any = REQUIRED
    kind: type = float
    """``float`` (positive), ``int`` (positive) or ``bool``."""
    words: Mapping[Any, str] = field(default_factory=dict)
    """What the engine calls a value, where it has a name of its own for it."""


class Window(enum.Enum):
    """What becomes of a sliding attention window: it is a setting of the runtime, never part of the weights."""

    REFUSED = "the engine cannot honour it"
    ALL_LAYERS = "every layer has it"
    PATTERN = "every n-th layer has none"


def _as_it_is(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return raw


def _nothing(_: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Architecture:
    """Everything that differs between model families, as data and small pure functions."""

    name: str
    """Hugging Face class name, which is also the key of TensorRT-LLM's model map."""
    keys: Mapping[str, tuple[str, ...]]
    """Field of ``ModelConfig`` (and of its ``Moe``) to its spellings in ``config.json``."""
    defaults: Mapping[str, Any]
    """What the absence of a field means; a field that is not here is required."""
    activations: Mapping[str, str]
    """Spellings of the activations that the engine has, to TensorRT-LLM's name."""
    rope_types: Mapping[str, RopeType]
    neutral: Mapping[str, tuple[Any, ...]]
    """Keys that change the result and that the engine cannot honour, with the values that change nothing."""
    restated: Mapping[str, str]
    """Keys that change the result too, unless their value is that of a field of ``ModelConfig``."""
    ignorable: frozenset[str]
    """Keys of ``config.json`` that do not change the result of inference."""
    engine_config: Callable[[ModelConfig], Mapping[str, Any]]
    """Keys of the TensorRT-LLM ``config.json`` beside the common ones and ``numerics``."""
    tensors: tuple[TensorRule, ...]
    engine_keys: tuple[str, ...] = ()
    """Those of ``engine_config`` that loaders read without a default."""
    model_fields: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _nothing
    """The way back of ``engine_config``: fields of ``ModelConfig`` that stand in keys of the family's own."""
    ignored_tensors: tuple[str, ...] = ()
    """Patterns of source tensors that hold nothing of their own."""
    numerics: Mapping[str, Numeric] = field(default_factory=dict)
    """TensorRT-LLM's key to where ``config.json`` has it."""
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    """Rewrites a ``config.json`` whose fields mean something else here than by their names."""
    optional_prefix: str = ""
    """Start of all source names that some publishers leave out."""
    window: Window = Window.REFUSED
    sliding_window_default: int | None = None
    """Attention window in tokens when ``config.json`` does not name one."""
    window_pattern_default: int = 1
    """With ``Window.PATTERN``: which n it is when ``config.json`` does not say."""
    max_pp: int | None = None
    """Most ranks of pipeline parallelism; None without a bound."""
    shares_embedding: bool = False
    """Whether the engine takes the embedding for shared by the ranks, whatever ``config.json`` says."""
    pads_vocab: bool = True
    """Whether the vocabulary may be padded to a multiple of the ranks."""
