"""Look at a network before it is compiled: what the contract quantizes is quantized, and nothing was decomposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


PRODUCT, DEQUANTIZE, QUANTIZE = "MATRIX_MULTIPLY", "DEQUANTIZE", "QUANTIZE"
_MOVES = frozenset({"SHUFFLE", "IDENTITY"})
"""Layers that change no value."""
_ACTIVATIONS = {LinearForm.INT8: "INT8", LinearForm.FP8: "FP8"}
_WEIGHTS = {**_ACTIVATIONS, LinearForm.INT8_WEIGHTS: "INT8", LinearForm.INT4_WEIGHTS: "INT4"}


class Network:
    """The layers by name and by what they put out."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = tuple(layers)
        self._named: dict[str, list[Layer]] = {}
        for layer in self.layers:
            self._named.setdefault(layer.name, []).append(layer)
        self._makers = {each.name: layer for layer in self.layers for each in layer.outputs}

    def named(self, name: str, kind: str) -> Layer | None:
        """Return the layer of that kind that was made of a node."""
        return next((each for each in self._named.get(name, ()) if each.kind == kind), None)

    def kinds_of(self, name: str) -> str:
        """Return what was made of a node instead, for a message."""
        return ", ".join(each.kind for each in self._named.get(name, ())) or "nothing"

    def maker(self, tensor: Tensor) -> Layer | None:
        """Return the layer that a tensor's values come from; None for an input of the network."""
        layer = self._makers.get(tensor.name)
        while layer is not None and layer.kind in _MOVES:
            layer = self._makers.get(layer.inputs[0].name)
        return layer


def walk(layers: Sequence[Layer], facts: GraphFacts) -> dict[str, int]:
    """Return how many layers there are of each kind that the graph's parts have to be.

    Raises:
        StageError: Something fell back; each layer is named with what became of it.
    """
    network = Network(layers)
    native = {
        "ATTENTION": facts.attentions,
        "ROTARY_EMBEDDING": facts.rotaries,
        "KV_CACHE_UPDATE": facts.cache_updates,
    }
    problems = [text for name, form in facts.linears.items() for text in _of_linear(network, name, form)]
    for kind, names in native.items():
        problems += [text for name in names for text in _of_native(network, name, kind)]
    if problems:
        hint = "use another format, or report it with the log: TensorRT for RTX has changed"
        shown = "\n".join(
            problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if problems[_SHOWN:] else [])
        )
        raise StageError(f"the compiler would not run it as the contract says:\n{shown}", hint=hint)
    forms = Counter(form.value for form in facts.linears.values())
    return {**{f"{form} products": count for form, count in sorted(forms.items())}, **_native(native)}


_SHOWN = 20


def _native(native: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {kind.lower().replace("_", " "): len(names) for kind, names in native.items()}


def _of_native(network: Network, name: str, kind: str) -> Iterator[str]:
    if network.named(name, kind) is None:
        yield f"{name}: became {network.kinds_of(name)}, not {kind}"


def _of_linear(network: Network, name: str, form: LinearForm) -> Iterator[str]:
    product = network.named(name, PRODUCT)
    if product is None:
        yield f"{name}: became {network.kinds_of(name)}, not {PRODUCT}"
        return
    values, weights = product.inputs[:2]
    wanted = {"its input": (values, _ACTIVATIONS.get(form)), "its weights": (weights, _WEIGHTS.get(form))}
    for what, (tensor, dtype) in wanted.items():
        if dtype is not None and (found := _stored(network, tensor)) != dtype:
            yield f"{name}: {what} are {found}, not {dtype}"


def _stored(network: Network, tensor: Tensor) -> str:
    """Return the type that a tensor is dequantized from; its own where it is not."""
    layer = network.maker(tensor)
    if layer is None or layer.kind != DEQUANTIZE:
        return tensor.dtype
    return layer.inputs[0].dtype
