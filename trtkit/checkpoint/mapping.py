"""Which source tensors make which target tensor, with two-way accounting: nothing missing, nothing left over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from trtkit.catalog.architectures import ARCHITECTURES, Architecture
from trtkit.catalog.architectures.architecture import Dim, Source, TensorRule, When
from trtkit.checkpoint.condense import condense
from trtkit.checkpoint.safetensors import TensorInfo
from trtkit.errors import ContractError, Problem
from trtkit.plan.model import ModelConfig

_FLOATS = frozenset({"bfloat16", "float16", "float32"})
_HEAD_DIMS = frozenset({Dim.Q, Dim.KV})
_TWO_MODELS = "config.json and weights are from different models: take both from one place"
_BIASES = (When.ATTN_BIAS, When.MLP_BIAS)
_FLAGS = {When.ATTN_BIAS: "attention_bias", When.MLP_BIAS: "mlp_bias", When.UNTIED: "tie_word_embeddings"}


@dataclass(frozen=True)
class ExpectedTensor:
    """A tensor that the model must have in the TensorRT-LLM checkpoint (one rank)."""

    name: str
    shape: tuple[int, ...]
    rule: TensorRule
    layer: int | None


@dataclass(frozen=True)
class MappedTensor:
    """An expected tensor and the source tensors whose rows, one after the other, it consists of."""

    target: ExpectedTensor
    sources: tuple[TensorInfo, ...]


def expected_tensors(config: ModelConfig) -> list[ExpectedTensor]:
    """Return every tensor of the target, with its shape."""
    return [
        ExpectedTensor(rule.target.format(layer=layer), _target_shape(rule, config), rule, layer)
        for rule, layer in _rules(config)
    ]


def map_tensors(config: ModelConfig, tensors: Mapping[str, TensorInfo], *, file: str) -> list[MappedTensor]:
    """Return where every target tensor comes from. ``file`` is named in problems.

    Raises:
        ContractError: Tensors are missing, left over, of another shape than the configuration says, or not
            floating point; all of them are listed.
    """
    check_layers(config, tensors, file=file)
    expected = expected_tensors(config)
    problems = [problem for target in expected for problem in _source_problems(config, target, tensors)]
    problems += _leftovers(config, expected, tensors)
    for biases, problem in _uneven_biases(config, tensors):
        # Neither value of the flag would help: what either one asks for is not worth telling.
        problems = [problem, *(other for other in problems if _in_layer(other.key) not in biases)]
    if problems:
        raise ContractError(condense(problems, file=file))
    return [MappedTensor(target, tuple(tensors[name] for name, _ in _sources(target))) for target in expected]


def check_layers(config: ModelConfig, tensors: Mapping[str, TensorInfo], *, file: str) -> None:
    """Refuse more layers than tensors, before every tensor of every layer is looked for.

    Raises:
        ContractError: There are more.
    """
    if config.num_layers > len(tensors):
        message = f"{config.num_layers:,} layers cannot be made of {len(tensors):,} tensors"
        raise ContractError([Problem(message, key="num_hidden_layers", hint=_TWO_MODELS, file=file)])


def tied_copies(config: ModelConfig) -> dict[str, str]:
    """Return the source tensors that tying makes superfluous, each with the one that stands for it."""
    rules = _architecture(config).tensors if config.tie_word_embeddings else ()
    shared = {rule.target: rule.sources[0].name for rule in rules if rule.when is When.TIED}
    return {rule.sources[0].name: shared[rule.target] for rule in rules if rule.when is When.UNTIED}


def _rules(config: ModelConfig) -> Iterator[tuple[TensorRule, int | None]]:
    present = {
        When.ALWAYS: True,
        When.ATTN_BIAS: config.attn_bias,
        When.MLP_BIAS: config.mlp_bias,
        When.TIED: config.tie_word_embeddings,
        When.UNTIED: not config.tie_word_embeddings,
    }
    for rule in _architecture(config).tensors:
        if present[rule.when]:
            for layer in range(config.num_layers) if rule.per_layer else (None,):
                yield rule, layer


def _architecture(config: ModelConfig) -> Architecture:
    return ARCHITECTURES[config.architecture]


def _sources(target: ExpectedTensor) -> list[tuple[str, Source]]:
    return [(source.name.format(layer=target.layer), source) for source in target.rule.sources]


def _shape(source: Source, config: ModelConfig) -> tuple[int, ...]:
    sizes = {
        Dim.HIDDEN: config.hidden_size,
        Dim.Q: config.num_heads * config.head_size,
        Dim.KV: config.num_kv_heads * config.head_size,
        Dim.INTERMEDIATE: config.intermediate_size,
        Dim.VOCAB: config.vocab_size,
    }
    return tuple(sizes[dim] for dim in source.shape)


def _target_shape(rule: TensorRule, config: ModelConfig) -> tuple[int, ...]:
    shapes = [_shape(source, config) for source in rule.sources]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _source_problems(
    config: ModelConfig, target: ExpectedTensor, tensors: Mapping[str, TensorInfo]
) -> Iterator[Problem]:
    for name, source in _sources(target):
        shape = _shape(source, config)
        if name not in tensors:
            yield Problem("the tensor is missing", key=name, hint=_missing_hint(target.rule))
        elif tensors[name].shape != shape:
            message = f"config.json asks for {_text(shape)}, the tensor is {_text(tensors[name].shape)}"
            yield Problem(message, key=name, hint=_shape_hint(source, config))
        elif (dtype := tensors[name].dtype) not in _FLOATS:
            message = f"is {dtype}; sources of {', '.join(sorted(_FLOATS))} can be converted"
            hint = "save it as float32" if dtype == "float64" else "give the checkpoint it was quantized from"
            yield Problem(message, key=name, hint=hint)


def _missing_hint(rule: TensorRule) -> str:
    if rule.when is When.UNTIED:
        return (
            "tie_word_embeddings is false, so the head has weights of its own: download the checkpoint whole, or "
            "set tie_word_embeddings to true in config.json if the model was trained that way"
        )
    if rule.when in _FLAGS:
        return f"config.json says {_FLAGS[rule.when]} is true: correct it if the model has no such biases"
    return "download the checkpoint whole"


def _shape_hint(source: Source, config: ModelConfig) -> str:
    if _HEAD_DIMS & set(source.shape):
        return (
            f"the configuration means {config.num_heads} query heads and {config.num_kv_heads} KV heads of "
            f"{config.head_size}: correct head_dim, num_attention_heads or num_key_value_heads"
        )
    return _TWO_MODELS


def _leftovers(
    config: ModelConfig, expected: list[ExpectedTensor], tensors: Mapping[str, TensorInfo]
) -> Iterator[Problem]:
    used = {name for target in expected for name, _ in _sources(target)} | set(tied_copies(config))
    ignored = _architecture(config).ignored_tensors
    flags = {name: _FLAGS[when] for when in _BIASES for name in _bias_names(config, when)}
    for name in tensors:
        if name in used or any(fnmatchcase(name, pattern) for pattern in ignored):
            continue
        flag = flags.get(_in_layer(name))
        hint = f"set {flag} to true in config.json if the model was trained with it" if flag else ""
        yield Problem("nothing in the architecture uses this tensor", key=name, hint=hint)


def _uneven_biases(
    config: ModelConfig, tensors: Mapping[str, TensorInfo]
) -> Iterator[tuple[list[str], Problem]]:
    """Yield the biases that come with one flag where the source has some of them only, and what that means."""
    present = set(map(_in_layer, tensors))
    for when in _BIASES:
        names = _bias_names(config, when)
        lacking = [name for name in names if name not in present]
        if 0 < len(lacking) < len(names):
            found = ", ".join(name for name in names if name in present)
            message = f"the layers have {found} but not {', '.join(lacking)}: a {config.architecture} has all or none"
            hint = "if the download is whole, the model is of another architecture, which cannot be converted"
            yield names, Problem(message, hint=hint)


def _bias_names(config: ModelConfig, when: When) -> list[str]:
    rules = _architecture(config).tensors
    return [_in_layer(source.name) for rule in rules if rule.when is when for source in rule.sources]


def _in_layer(name: str) -> str:
    """Return what follows ``model.layers.N.``."""
    return name.split(".", 3)[-1]


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a scalar"
