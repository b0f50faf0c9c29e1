"""Which linear layer has which format, where some stay plain or have another one than the rest.

Patterns are shell patterns of TensorRT-LLM's module names: ``transformer.layers.3.mlp*``, ``lm_head``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from trtkit.catalog.formats import SMOOTHQUANT, WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.schemes import DEFAULT_EXCLUDED, MIXABLE, PARTIAL, UNGROUPED
from trtkit.errors import ContractError, Problem, Severity
from trtkit.plan.tensors import rules_of
from trtkit.plan.types import QuantPlan

HEAD, PLAIN = "lm_head", "none"
_EXCLUDE, _OVERRIDES = "quantization.exclude", "quantization.overrides"
_WHOLE = "engines replace whole blocks for it, not single layers"
_NEAREST = {"int8-sq": "use smoothquant: qdq", "fp8-rowwise": "use fp8"}
_ONE_KERNEL = "TensorRT-LLM's builder would read INT8 weights by the kernel of INT4 groups"
_PORTABLE = {"int4-gptq": "W4A16_AWQ"}
"""Formats that are written as another algorithm than the plan counts with."""


@dataclass(frozen=True)
class LayerFormats:
    """The format of each linear layer, and of the head where that is quantized."""

    formats: Mapping[str, str]

    def of(self, module: str) -> str:
        """Return a layer's format."""
        return self.formats.get(module, PLAIN)

    @property
    def quantized(self) -> tuple[str, ...]:
        """The formats that there are, plain apart."""
        return tuple(dict.fromkeys(name for name in self.formats.values() if name != PLAIN))

    @property
    def plain(self) -> tuple[str, ...]:
        """The linear layers that stay as they are."""
        return tuple(module for module, name in self.formats.items() if name == PLAIN and module != HEAD)

    @property
    def has_head(self) -> bool:
        """Whether the head is quantized."""
        return self.of(HEAD) != PLAIN

    @property
    def is_even(self) -> bool:
        """Whether every decoder layer has the same: pipeline ranks count their layers from 0, and so do patterns."""
        kinds: dict[str, set[str]] = defaultdict(set)
        for module, name in self.formats.items():
            kinds[module.split(".", 3)[-1]].add(name)
        return all(len(each) == 1 for each in kinds.values())


def layer_formats(model: ModelConfig, asked: QuantPlan) -> LayerFormats | None:
    """Return what ``exclude`` and ``overrides`` make of a model; None where they are not given.

    Raises:
        ContractError: A pattern matches nothing, patterns contradict each other, or engines have no such mixture.
    """
    if asked.exclude is None and not asked.overrides:
        return None
    modules = linear_modules(model)
    wishes = [(_EXCLUDE, pattern, PLAIN) for pattern in asked.exclude or ()]
    wishes += [(_OVERRIDES, pattern, name) for pattern, name in asked.overrides]
    problems = list(unmatched([(key, pattern) for key, pattern, _ in wishes], (*modules, *tables_of(model))))
    formats = dict.fromkeys(modules, asked.weights)
    formats[HEAD] = PLAIN if asked.exclude is None else asked.weights
    decided: dict[str, tuple[str, str]] = {}
    for key, pattern, name in wishes:
        for module in formats:
            if not fnmatchcase(module, pattern):
                continue
            before, other = decided.setdefault(module, (name, pattern))
            if before != name:
                problems.append(
                    Problem(f"{module} is {name} by {pattern!r} and {before} by {other!r}", key, "keep one")
                )
            formats[module] = name
    found = LayerFormats(formats)
    problems += [] if problems else _impossible(model, asked, found)
    if problems:
        raise ContractError(list({(each.key, each.hint): each for each in problems}.values()))
    return found


def known_layers(model: ModelConfig, asked: QuantPlan) -> LayerFormats | None:
    """Return the same, and None too where there is something wrong with the patterns, which a check tells.

    What a source has quantized already is as it is there.
    """
    if model.kept is not None:
        plain = model.kept.plain
        return LayerFormats({
            module: PLAIN if module in plain else asked.weights for module in linear_modules(model)
        })  # fmt: skip
    try:
        return layer_formats(model, asked)
    except ContractError:
        return None


def head_warnings(model: ModelConfig, asked: QuantPlan) -> Iterator[Problem]:
    """Yield that a list of other layers has the head quantized, which would have stayed plain without one."""
    found = known_layers(model, asked)
    if (
        found
        and found.has_head
        and asked.exclude
        and not any(fnmatchcase(HEAD, each) for each, _ in asked.overrides)
    ):
        message = f"the head is {found.of(HEAD)} too: a list takes the place of the default, which is {HEAD}"
        hint = f"add {HEAD} to the list, or leave it if that is meant"
        yield Problem(message, _EXCLUDE, hint, severity=Severity.WARNING)


def layer_problems(model: ModelConfig, asked: QuantPlan) -> tuple[Problem, ...]:
    """Return what :func:`layer_formats` would raise."""
    try:
        layer_formats(model, asked)
    except ContractError as error:
        return tuple(error.problems)
    return ()


def unmatched(patterns: Sequence[tuple[str, str]], modules: Sequence[str]) -> Iterator[Problem]:
    """Yield each pattern, with its key, that matches no module; those of the loader's list are for all models."""
    for key, pattern in patterns:
        if pattern in DEFAULT_EXCLUDED or any(fnmatchcase(module, pattern) for module in modules):
            continue
        near = get_close_matches(pattern, modules, n=3, cutoff=0.5)
        hint = f"near it are {', '.join(near)}" if near else f"names are like {', '.join(modules[:3])}"
        yield Problem(f"{pattern!r} matches no layer", key, hint)


def linear_modules(model: ModelConfig) -> list[str]:
    """Return the names of the linear layers, layer by layer."""
    rules = [rule.target.removesuffix(".weight") for rule in rules_of(model) if rule.is_linear]
    return [name.format(layer=layer) for layer in range(model.num_layers) for name in rules]


def tables_of(model: ModelConfig) -> list[str]:
    """Return the names of the matrices that are no such layers: embeddings, routers, the head."""
    rules = [
        rule
        for rule in rules_of(model)
        if not rule.is_linear and rule.target.endswith(".weight") and len(rule.sources[0].shape) > 1
    ]
    names = [rule.target.removesuffix(".weight") for rule in rules]
    return [
        name.format(layer=layer)
        for name in names
        for layer in range(model.num_layers if "{layer}" in name else 1)
    ]


def algorithm_of(name: str, smoothquant: str | None = None) -> str | None:
    """Return the ``quant_algo`` that layers of a format have in a checkpoint."""
    if smoothquant and name == "int8-sq":
        return SMOOTHQUANT[smoothquant]
    return _PORTABLE.get(name, WEIGHTS[name].quant_algo)


def _impossible(model: ModelConfig, asked: QuantPlan, found: LayerFormats) -> list[Problem]:
    """Return what engines have no such mixture of."""
    key = _OVERRIDES if asked.overrides else _EXCLUDE
    problems = [*uneven_branches(key, found), *_split_experts(model, key, found)]
    quantized = found.quantized
    if not quantized:
        problems.append(Problem("leaves nothing quantized", key, "use weights: none"))
    algorithms = {name: algorithm_of(name, asked.smoothquant) for name in quantized}
    if found.of(HEAD) not in (PLAIN, "fp8"):
        message = f"leaves the head to be {found.of(HEAD)}, and TensorRT-LLM has heads in fp8 or plain"
        problems.append(Problem(message, key, "add lm_head to quantization.exclude"))
    for name, algorithm in algorithms.items():
        if len(quantized) > 1 and algorithm not in MIXABLE:
            others = " and ".join(each for each in quantized if each != name)
            message = f"{name} ({algorithm}) layers cannot be beside those of {others}: {_WHOLE}"
            problems.append(Problem(message, key, _NEAREST.get(name, "leave layers plain")))
        elif found.plain and algorithm not in PARTIAL:
            message = f"{name} ({algorithm}) engines quantize every layer or none"
            hint = "use smoothquant: qdq" if name == "int8-sq" else "use fp8, int8-wo or an INT4 format"
            problems.append(Problem(message, key, hint))
    narrow = [name for name in quantized if WEIGHTS[name].group_values]
    for name, algorithm in algorithms.items():
        if narrow and algorithm in UNGROUPED:
            message = f"{name} layers cannot be beside those of {narrow[0]}: {_ONE_KERNEL}"
            problems.append(Problem(message, key, f"use fp8 for one of them, or leave {name} layers plain"))
    if len(narrow) > 1:
        message = f"{' and '.join(narrow)} are found by calibrations of their own"
        problems.append(Problem(message, key, "use one INT4 format"))
    return problems


def uneven_branches(key: str, found: LayerFormats) -> Iterator[Problem]:
    """Yield gated MLPs whose branches differ: engines join them."""
    for module, name in found.formats.items():
        other = module.removesuffix(".gate") + ".fc"
        if module.endswith(".gate") and other in found.formats and found.of(other) != name:
            message = f"{other} is {found.of(other)} and {module} is {name}, which engines join"
            yield Problem(message, key, f"name both: {module.removesuffix('gate')}*")


def uneven_stages(key: str, found: LayerFormats, stages: int) -> Iterator[Problem]:
    """Yield that layers differ, where several stages of a pipeline have them."""
    if stages > 1 and not found.is_even:
        message = "every stage counts its layers from 0, so that layers of a pipeline cannot differ"
        yield Problem(
            message, key, "use patterns for all layers alike, or one stage: engine.pipeline_parallel"
        )


def _split_experts(model: ModelConfig, key: str, found: LayerFormats) -> Iterator[Problem]:
    """Yield experts in several formats, and mixtures that only Mixtral's loader has been seen to read."""
    rules = [rule.target.removesuffix(".weight") for rule in rules_of(model) if rule.per_expert]
    formats = {
        found.of(name.format(layer=layer)) for name in rules for layer in range(model.num_layers)
    }  # fmt: skip
    if len(formats) > 1 or (formats == {PLAIN} and found.quantized):
        yield Problem("gives experts another format than the rest", key, "leave experts out of the patterns")
    elif formats and len(found.quantized) > 1:
        int8 = [name for name in found.quantized if name.startswith("int8")]
        if int8 or model.architecture != "MixtralForCausalLM":
            kinds = f"{int8[0]} layers beside others" if int8 else "layers of several formats"
            message = f"nothing is known of {kinds} in {model.architecture}"
            yield Problem(message, key, "use one format")
