"""Which source tensors make which target tensor, with two-way accounting: nothing missing, nothing left over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from trtkit.catalog.architectures.architecture import Dim, Source, TensorRule, When
from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.condense import condense
from trtkit.checkpoint.expected import ExpectedTensor, architecture_of, expected_tensors
from trtkit.checkpoint.safetensors import TensorInfo
from trtkit.checkpoint.storage.storage import PLAIN, WEIGHT, PartSpec, Storage, Stored
from trtkit.errors import ContractError, Problem
from trtkit.plan.tensors import source_shape

FLOATS = ("bfloat16", "float16", "float32")
_HEAD_DIMS = frozenset({Dim.Q, Dim.KV, Dim.QKV, Dim.HEAD})
_LAYER_NUMBER = re.compile(r"\.(?:\d+|\{layer\})\.")
_TWO_MODELS = "config.json and weights are from different models: take both from one place"
_BIASES = {When.ATTN_BIAS: "attn_bias", When.MLP_BIAS: "mlp_bias"}
"""Biases and the field of ``ModelConfig`` that says whether they are there."""


@dataclass(frozen=True)
class MappedTensor:
    """An expected tensor and the sources it consists of, by rows: for each expert, each source of the rule."""

    target: ExpectedTensor
    sources: tuple[Stored, ...]

    @property
    def module(self) -> str:
        """The engine's name of the layer."""
        return self.target.name.rpartition(".")[0]

    @property
    def is_plain(self) -> bool:
        """Whether none of its sources is quantized."""
        return all(source.is_plain for source in self.sources)

    @property
    def plain(self) -> tuple[TensorInfo, ...]:
        """The tensors of sources that are not quantized."""
        return tuple(source.parts[WEIGHT] for source in self.sources)


def map_tensors(
    config: ModelConfig, tensors: Mapping[str, TensorInfo], *, file: str, storage: Storage = PLAIN
) -> list[MappedTensor]:
    """Return where every target tensor comes from. ``file`` is named in problems.

    Raises:
        ContractError: Tensors are missing, left over, of another shape than the configuration says, or of another
            data type than the storage has; all of them are listed.
    """
    check_layers(config, tensors, file=file)
    prefix = _left_out_prefix(config, tensors)
    targets = [(target, _wanted(target, config, storage, prefix)) for target in expected_tensors(config)]
    problems = [
        problem for target, wanted in targets for problem in _source_problems(config, target, wanted, tensors)
    ]
    problems += _leftovers(config, [wanted for _, wanted in targets], tensors, storage, prefix)
    for biases, problem in _uneven_biases(config, tensors):
        # Neither value of the flag would help: what either one asks for is not worth telling.
        problems = [problem, *(other for other in problems if _in_layer(other.key) not in biases)]
    if problems:
        parts = [part for _, wanted in targets for item in wanted for part in item.parts.values()]
        lacking = [
            part.name for part in parts if not part.optional and not any(n in tensors for n in part.names)
        ]
        raise ContractError(_renamed(lacking, tensors, file) or condense(problems, file=file))
    return [
        MappedTensor(target, tuple(_stored(item, tensors) for item in wanted)) for target, wanted in targets
    ]


@dataclass(frozen=True)
class _Wanted:
    """A source as it should be found."""

    name: str
    shape: tuple[int, ...]
    source: Source
    parts: Mapping[str, PartSpec]


def _wanted(target: ExpectedTensor, config: ModelConfig, storage: Storage, prefix: str) -> list[_Wanted]:
    found = []
    experts = range(config.moe.num_experts) if config.moe and target.rule.per_expert else (None,)
    for expert in experts:
        for source in target.rule.sources:
            name = source.name.format(layer=target.layer, expert=expert).removeprefix(prefix)
            shape = source_shape(source, config)
            parts = storage.parts(name, shape) if target.rule.is_linear else None
            plain = {WEIGHT: PartSpec(name, shape, FLOATS)}
            found.append(_Wanted(name, shape, source, plain if parts is None else parts))
    return found


def _stored(wanted: _Wanted, tensors: Mapping[str, TensorInfo]) -> Stored:
    parts = {
        key: part.shaped(tensors[name])
        for key, part in wanted.parts.items()
        for name in part.names
        if name in tensors
    }
    return Stored(wanted.name, wanted.shape, parts)


def _left_out_prefix(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> str:
    prefix = architecture_of(config).optional_prefix
    return "" if any(name.startswith(prefix) for name in tensors) else prefix


def check_layers(config: ModelConfig, tensors: Mapping[str, TensorInfo], *, file: str) -> None:
    """Refuse more layers than tensors, before every tensor of every layer is looked for.

    Raises:
        ContractError: There are more.
    """
    if config.num_layers > len(tensors):
        message = f"{config.num_layers:,} layers cannot be made of {len(tensors):,} tensors"
        raise ContractError([Problem(message, key="num_hidden_layers", hint=_TWO_MODELS, file=file)])


def tied_copies(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    """Return the source tensors that tying makes superfluous, each with the one that stands for it."""
    prefix = _left_out_prefix(config, tensors)
    rules = architecture_of(config).tensors if config.tie_word_embeddings else ()
    shared = {rule.target: rule.sources[0].name for rule in rules if rule.when is When.TIED}
    return {
        rule.sources[0].name.removeprefix(prefix): shared[rule.target].removeprefix(prefix)
        for rule in rules
        if rule.when is When.UNTIED
    }


def _source_problems(
    config: ModelConfig, target: ExpectedTensor, wanted: list[_Wanted], tensors: Mapping[str, TensorInfo]
) -> Iterator[Problem]:
    for item in wanted:
        for part in item.parts.values():
            found = [name for name in part.names if name in tensors]
            info = tensors[found[0]] if found else None
            if info is None:
                if not part.optional:
                    yield Problem(
                        "the tensor is missing", key=part.name, hint=_missing_hint(target.rule, config)
                    )
            elif len(found) > 1:
                message = f"is there under another name too: {', '.join(found[1:])}"
                yield Problem(message, key=found[0], hint="remove the one that the model was not made with")
            elif not part.fits(info.shape):
                message = f"config.json asks for {_text(part.shape)}, the tensor is {_text(info.shape)}"
                yield Problem(message, key=info.name, hint=_shape_hint(item.source, config))
            elif info.dtype not in part.dtypes:
                message = f"is {info.dtype}; sources of {', '.join(part.dtypes)} can be converted"
                hint = (
                    "save it as float32"
                    if info.dtype == "float64"
                    else "give the checkpoint it was quantized from"
                )
                yield Problem(message, key=info.name, hint=hint)


def _renamed(lacking: list[str], tensors: Mapping[str, TensorInfo], file: str) -> list[Problem]:
    """Return the one problem of names that all begin with too much or too little; none when it is something else."""
    first = lacking[0] if lacking else ""
    for name in tensors if first else ():
        if name.endswith(f".{first}"):
            extra = name.removesuffix(first)
            if all(extra + each in tensors for each in lacking):
                hint = f"save them without {extra!r}: a wrapper around the model put it there"
                return [
                    Problem(f"the names of the tensors begin with {extra!r}", key=name, hint=hint, file=file)
                ]
        elif first.endswith(f".{name}"):
            extra = first.removesuffix(name)
            if all(each.startswith(extra) and each.removeprefix(extra) in tensors for each in lacking):
                hint = f"save them with {extra!r} before: only a part of the model was saved"
                return [Problem(f"the names of the tensors lack {extra!r}", key=name, hint=hint, file=file)]
    return []


def _missing_hint(rule: TensorRule, config: ModelConfig) -> str:
    if rule.when is When.UNTIED:
        return (
            "tie_word_embeddings is false, so the head has weights of its own: download the checkpoint whole, or "
            "set tie_word_embeddings to true in config.json if the model was trained that way"
        )
    if flag := _flag(config, rule.when):
        return f"{flag} is true, by config.json or by its class: make it false if there are no such biases"
    return "download the checkpoint whole"


def _shape_hint(source: Source, config: ModelConfig) -> str:
    if _HEAD_DIMS & set(source.shape):
        return (
            f"the configuration means {config.num_heads} query heads and {config.num_kv_heads} KV heads of "
            f"{config.head_size}: correct head_dim, num_attention_heads or num_key_value_heads"
        )
    return _TWO_MODELS


def _leftovers(
    config: ModelConfig,
    wanted: list[list[_Wanted]],
    tensors: Mapping[str, TensorInfo],
    storage: Storage,
    prefix: str,
) -> Iterator[Problem]:
    parts = [part for items in wanted for item in items for part in item.parts.values()]
    used = {name for part in parts for name in part.names}
    used |= set(tied_copies(config, tensors))
    ignored = [pattern.removeprefix(prefix) for pattern in architecture_of(config).ignored_tensors]
    flags = {name: _flag(config, when) for when in _BIASES for name in _bias_names(config, when)}
    for name in tensors:
        if (
            name in used
            or storage.superfluous(name)
            or any(fnmatchcase(name, pattern) for pattern in ignored)
        ):
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


def _flag(config: ModelConfig, when: When) -> str:
    """Return the family's key in ``config.json`` for biases; empty where the class alone decides."""
    keys = architecture_of(config).keys[_BIASES[when]] if when in _BIASES else ()
    return keys[0] if keys else ""


def _bias_names(config: ModelConfig, when: When) -> list[str]:
    rules = architecture_of(config).tensors
    return [_in_layer(source.name) for rule in rules if rule.when is when for source in rule.sources]


def _in_layer(name: str) -> str:
    """Return what follows the number of the layer."""
    return _LAYER_NUMBER.split(name, maxsplit=1)[-1]


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a scalar"
