"""Which linear layers a decoder layer has, by the names that the ranges file gives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.catalog.architectures.architecture import Arrange
from trtkit.catalog.parallel import ONE_RANK
from trtkit.checkpoint.blocks import row_order
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.mapping import MappedTensor, map_tensors
from trtkit.checkpoint.safetensors import TensorInfo
from trtkit.checkpoint.storage.storage import PLAIN
from trtkit.errors import InputError
from trtkit.quantize.linear import Linear, linears
from trtkit.quantize.sharing import sharing_input


@dataclass(frozen=True)
class LinearGroup:
    """Linear layers that read the same input."""

    names: tuple[str, ...]
    width: int
    outputs: int
    """Rows of all their weights together."""


class ModelLayers:
    """The decoder layers of a source, from headers alone.

    Raises:
        InputError: Tensors are missing, left over, or quantized already.
    """

    def __init__(self, source: HfCheckpoint) -> None:
        self.config = source.config
        if source.storage is not PLAIN:
            hint = "calibrate the checkpoint that it was made from"
            raise InputError("the weights are quantized already", path=source.folder, hint=hint)
        self.mapped = map_tensors(
            source.config, source.tensors, file=str(source.folder), storage=source.storage
        )
        self.layout = Layout(source.config, "bfloat16", ONE_RANK)
        self._by_layer: dict[int, list[Linear]] = defaultdict(list)
        for linear in linears(self.mapped, self.layout):
            if linear.tensor.target.layer is not None:
                self._by_layer[linear.tensor.target.layer].append(linear)

    def groups(self, layer: int) -> list[LinearGroup]:
        """Return the linear layers, experts left out, by what they read."""
        found = [linear for linear in self._by_layer[layer] if not linear.tensor.target.rule.per_expert]
        return [_group(members) for members in sharing_input(found)]

    def experts(self, layer: int) -> list[list[str]]:
        """Return the linear layers of experts, those of the same kind together."""
        found: list[list[str]] = []
        for linear in self._by_layer[layer]:
            if linear.tensor.target.rule.per_expert:
                names, kinds = module_names(linear.tensor), len(linear.tensor.target.rule.sources)
                found += [names[kind::kinds] for kind in range(kinds)]
        return found

    def keys(self, layer: int) -> tuple[list[str], list[list[range] | None]]:
        """Return the modules whose outputs are Q, K and V, and the order of each one's rows in the engine."""
        linear = next(each for each in self._by_layer[layer] if each.name == "attention.qkv")
        arrange = linear.tensor.target.rule.arrange
        names = module_names(linear.tensor)
        sizes = [source.shape[arrange is Arrange.TRANSPOSED] for source in linear.tensor.sources]
        return names, [row_order(size, arrange, self.config) for size in sizes]

    def head(self) -> tuple[str, TensorInfo]:
        """Return what the file calls the head, and its weight."""
        tensor = next(each for each in self.mapped if each.target.name == "lm_head.weight")
        tied = self.config.tie_word_embeddings
        return "lm_head" if tied else module_names(tensor)[0], tensor.plain[0]


def module_names(tensor: MappedTensor) -> list[str]:
    """Return the full names of the modules that a linear layer of the engine is made of."""
    sources = tensor.target.rule.sources
    return [
        source.name.format(layer=tensor.target.layer, expert=expert).removesuffix(".weight")
        for expert in range(len(tensor.sources) // len(sources))
        for source in sources
    ]


def _group(members: Sequence[Linear]) -> LinearGroup:
    names = [name for linear in members for name in module_names(linear.tensor)]
    shape = members[0].tensor.target.shape
    return LinearGroup(tuple(names), shape[-1], sum(linear.rows for linear in members))
