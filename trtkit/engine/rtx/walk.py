"""Look at a network before it is compiled: what the contract quantizes is quantized, and nothing was decomposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtkit.engine.graph.spec import GraphFacts, LinearForm
from trtkit.errors import StageError


@dataclass(frozen=True)
class Tensor:
    """An input or output of a layer."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Layer:
    """One layer, as TensorRT's parser made it of a node of the graph, whose name it bears."""

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Layer:
        """Return the layer that a line of the compiler's process describes."""
        tensors = [tuple(Tensor(*each) for each in raw[key]) for key in ("inputs", "outputs")]
        return cls(raw["name"], raw["kind"], *tensors)


PRODUCT, DEQUANTIZE = "MATRIX_MULTIPLY", "DEQUANTIZE"
_MOVES = frozenset({"SHUFFLE", "IDENTITY"})
"""Layers that change no value."""
_ACTIVATIONS = {LinearForm.INT8: "INT8", LinearForm.FP8: "FP8"}
_UPDATE, _PAGED_UPDATE = "KV_CACHE_UPDATE", "SCATTER"
_SHOWN = 20
_WEIGHTS = {**_ACTIVATIONS, LinearForm.INT8_WEIGHTS: "INT8", LinearForm.INT4_WEIGHTS: "INT4"}


class Network:
    """The layers, by the tensors that they put out: a node's bears the node's name."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._makers = {each.name: layer for layer in layers for each in layer.outputs}

    @property
    def is_empty(self) -> bool:
        """Whether no layer puts out anything."""
        return not self._makers

    def kind_of(self, name: str) -> str:
        """Return what the compiler has made of a node."""
        layer = self._makers.get(name)
        return layer.kind if layer else "nothing of that name"

    def inputs_of(self, name: str) -> tuple[Tensor, ...]:
        """Return what the layer that was made of a node reads."""
        return self._makers[name].inputs

    def maker(self, tensor: Tensor) -> Layer | None:
        """Return the layer that a tensor's values come from; None for an input of the network."""
        layer = self._makers.get(tensor.name)
        while layer is not None and layer.kind in _MOVES:
            layer = self._makers.get(layer.inputs[0].name)
        return layer


def walk(layers: Iterable[Layer], facts: GraphFacts) -> dict[str, int]:
    """Return how many layers there are of each kind that the graph's parts have to be.

    Raises:
        StageError: Something fell back; each layer is named with what became of it.
    """
    network = Network(layers)
    if network.is_empty:
        hint = "see which Python compiles: TRTKIT_RTX_PYTHON, and `trtkit doctor`"
        raise StageError("the compiler read a graph and shows no layer of it", hint=hint)
    native = {
        "ATTENTION_OUTPUT": facts.attentions,
        "ROTARY_EMBEDDING": facts.rotaries,
        _PAGED_UPDATE if facts.paged else _UPDATE: facts.cache_updates,
    }
    kinds = {PRODUCT: tuple(facts.linears), **native}
    problems = [text for kind, names in kinds.items() for text in _of_kind(network, names, kind)]
    problems += [text for name, form in facts.linears.items() for text in _of_linear(network, name, form)]
    if problems:
        hint = (
            "use another format; if it is this one that is needed, keep the folder of the graph and report it"
        )
        rest = [f"and {len(problems) - _SHOWN} more"] if problems[_SHOWN:] else []
        shown = "\n".join([*problems[:_SHOWN], *rest])
        raise StageError(f"the compiler would not run it as the contract says:\n{shown}", hint=hint)
    forms = Counter(form.value for form in facts.linears.values())
    counts = {kind.lower(): len(names) for kind, names in native.items()}
    return {**{f"{form} products": count for form, count in sorted(forms.items())}, **counts}


def _of_kind(network: Network, names: Iterable[str], kind: str) -> Iterator[str]:
    for name in names:
        if (found := network.kind_of(name)) != kind:
            yield f"{name}: became {found}, not {kind}"


def _of_linear(network: Network, name: str, form: LinearForm) -> Iterator[str]:
    if network.kind_of(name) != PRODUCT:
        return
    values, weights = network.inputs_of(name)[:2]
    wanted = {"its input": (values, _ACTIVATIONS.get(form)), "its weights": (weights, _WEIGHTS.get(form))}
    for what, (tensor, dtype) in wanted.items():
        if dtype is not None and (found := _stored(network, tensor)) != dtype:
            yield f"{name}: {what} come as {found}, not as {dtype}"


def _stored(network: Network, tensor: Tensor) -> str:
    """Return the type that a tensor is dequantized from; its own where it is not."""
    layer = network.maker(tensor)
    return layer.inputs[0].dtype if layer is not None and layer.kind == DEQUANTIZE else tensor.dtype
