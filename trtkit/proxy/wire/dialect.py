"""The tensors by which models take requests: four dialects, told from what a model declares and by no name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trtkit.proxy.admission import Reason
from trtkit.proxy.ending import Refusal
from trtkit.proxy.wire.sampling import SAMPLING, JsonLength

if TYPE_CHECKING:
    from trtkit.proxy.wire.request import LlmRequest
    from trtkit.proxy.wire.schema import Input, ModelSchema
    from trtkit.proxy.wire.tensors import Tensors


class Length(Protocol):
    """Where a request says how long its answer may be."""

    @property
    def name(self) -> str:
        """How errors call it."""

    def read(self, call: LlmRequest) -> int | None:
        """Return it in tokens, None where the request leaves it out."""

    def write(self, call: LlmRequest, schema: ModelSchema, tokens: int) -> None:
        """Set it, whether or not the request has it."""


@dataclass(frozen=True)
class TensorLength:
    """A tensor of its own."""

    tensor: str

    @property
    def name(self) -> str:
        """How errors call it."""
        return f"input '{self.tensor}'"

    def read(self, call: LlmRequest) -> int | None:
        """Return it in tokens, None where the request leaves it out."""
        return call.tensors.number(self.tensor) if self.tensor in call.tensors else None

    def write(self, call: LlmRequest, schema: ModelSchema, tokens: int) -> None:
        """Set it, whether or not the request has it."""
        if self.tensor in call.tensors:
            call.tensors.set_number(self.tensor, tokens)
        else:
            datatype = schema.inputs[self.tensor].datatype
            call.tensors.add_number(self.tensor, datatype, schema.shape_of_one(), tokens)


@dataclass(frozen=True)
class Dialect:
    """What the proxy has to find in a request, and where it is."""

    prompt: str
    stream: str
    length: Length
    known_by: frozenset[str]
    """Inputs that a model of this dialect declares, and no model of another does."""
    excludes_prompt: str | None = None
    """The input that keeps the prompt out of the answer, which otherwise begins with it; None where none can."""
    uncounted: tuple[str, ...] = ()
    """Inputs that add tokens or answers which nobody here can count: they are refused."""
    has_beams: bool = False
    stops_engine: bool = False
    """Whether a stop request goes to the engine's model behind this one."""

    @property
    def is_tokens(self) -> bool:
        """Whether the prompt comes as token ids rather than as text."""
        return self.prompt == "input_ids"

    def streams(self, tensors: Tensors) -> bool:
        """Tell whether the answer is asked for in pieces."""
        return _is_set(tensors, self.stream)

    def echoes(self, tensors: Tensors) -> bool:
        """Tell whether the answer may begin with the prompt."""
        return self.excludes_prompt is not None and not _is_set(tensors, self.excludes_prompt)

    def beams(self, tensors: Tensors) -> int:
        """Return how many answers are written side by side, of which the best is given."""
        return max(1, tensors.number(_BEAMS)) if self.has_beams and _BEAMS in tensors else 1

    def check(self, tensors: Tensors) -> None:
        """Refuse a request whose tokens cannot be counted.

        Raises:
            Refusal: It has several prompts or answers, or parts that are no text.
        """
        if self.prompt in tensors and not self.is_tokens and any(n != 1 for n in tensors.shape(self.prompt)):
            problem = (
                f"input '{self.prompt}' has {list(tensors.shape(self.prompt))} prompts; send one in a request"
            )
            raise Refusal(Reason.INVALID_INPUT, problem)
        for name in self.uncounted:
            if name in tensors and not (name in _ANSWERS and tensors.number(name) <= 1):
                raise Refusal(
                    Reason.INVALID_INPUT, f"input '{name}' is refused: the proxy cannot count what it takes"
                )


_BEAMS, _BEST_OF, _SEQUENCES = "beam_width", "sampling_param_best_of", "num_return_sequences"
_ANSWERS = frozenset({_BEST_OF, _SEQUENCES})
"""More answers than one at a time take as many slots."""
_LLMAPI_LENGTH, _TEXT_LENGTH, _TOKENS_LENGTH = "sampling_param_max_tokens", "max_tokens", "request_output_len"

TOKENS = Dialect(
    *("input_ids", "streaming", TensorLength(_TOKENS_LENGTH)),
    known_by=frozenset({"input_ids", _TOKENS_LENGTH}),
    uncounted=(_SEQUENCES,),
    has_beams=True,
)
"""TensorRT-LLM's engine."""
TEXT = Dialect(
    *("text_input", "stream", TensorLength(_TEXT_LENGTH)),
    known_by=frozenset({"text_input", _TEXT_LENGTH}),
    uncounted=(_SEQUENCES,),
    has_beams=True,
    stops_engine=True,
)
"""The ensemble and the BLS model before such an engine."""
LLMAPI = Dialect(
    *("text_input", "streaming", TensorLength(_LLMAPI_LENGTH)),
    known_by=frozenset({"text_input", _LLMAPI_LENGTH}),
    excludes_prompt="sampling_param_exclude_input_from_output",
    uncounted=("image_url", _BEST_OF),
)
"""TensorRT-LLM's Python API."""
VLLM = Dialect(
    *("text_input", "stream", JsonLength()),
    known_by=frozenset({"text_input", SAMPLING}),
    excludes_prompt="exclude_input_in_output",
    uncounted=("image", "embedding_request"),
)
"""Triton's vLLM back end."""
DIALECTS = (TOKENS, TEXT, LLMAPI, VLLM)


def dialect_of(inputs: Mapping[str, Input]) -> Dialect | None:
    """Return the dialect of a model with these inputs, None for one that is no language model, or an unknown one."""
    return next((each for each in DIALECTS if each.known_by <= inputs.keys()), None)


def _is_set(tensors: Tensors, name: str) -> bool:
    return name in tensors and bool(tensors.number(name))
