"""Checkpoints whose linear layers are not all in one format: some stay plain, or each has its own.

With one format, ``exclude_modules`` names the plain layers in full, which every part of TensorRT-LLM's loader reads
alike; the loader's own list goes before, as a list takes its place. With more, ``quant_cfg.json`` names the others.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtkit.catalog.schemes import DEFAULT_EXCLUDED, MIXED
from trtkit.checkpoint.jobs import Job, Layout, plain_jobs
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.recipe import WEIGHT_ONLY, Recipe
from trtkit.errors import Problem
from trtkit.plan.layers import HEAD, PLAIN, LayerFormats, uneven_stages

_CACHE = "kv_cache_quant_algo"


@dataclass(frozen=True)
class Mixed:
    """Writes every linear layer by the recipe of its format."""

    recipes: Mapping[str, Recipe]
    formats: LayerFormats

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The one format's block with what stays plain; of several only that there are."""
        first = next(iter(self.recipes.values())).quantization
        if len(self.recipes) > 1:
            return {"quant_algo": MIXED, _CACHE: first[_CACHE]}
        return {**first, "exclude_modules": list(self._excluded(first["quant_algo"]))}

    @property
    def layer_blocks(self) -> Mapping[str, Mapping[str, Any]]:
        """The block of each quantized layer, where there is more than one kind of them."""
        if len(self.recipes) == 1:
            return {}
        blocks = {name: dict(recipe.quantization) for name, recipe in self.recipes.items()}
        for block in blocks.values():
            del block[_CACHE]
        return {module: blocks[name] for module, name in self.formats.formats.items() if name != PLAIN}

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Refuse what a recipe refuses of its layers, and layers that differ on a pipeline."""
        uneven = list(uneven_stages("engine.pipeline_parallel", self.formats, layout.ranks.pp))
        return uneven or [
            problem
            for name, recipe in self.recipes.items()
            for problem in recipe.problems(as_quantized(mapped, self.formats, [name]), layout)
        ]

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return the jobs of each recipe for its layers, and copies of the rest."""
        seen = {name: as_quantized(mapped, self.formats, [name]) for name in self.recipes}
        if len(seen) == 1:
            return [job for name, recipe in self.recipes.items() for job in recipe.jobs(seen[name], layout)]
        copied = [each for each in mapped if self.formats.of(each.module) == PLAIN]
        return [
            *plain_jobs(copied, layout),
            *(
                job
                for name, recipe in self.recipes.items()
                for job in recipe.jobs(seen[name], layout)
                if job.targets[0].name.startswith(self._stems(name, seen[name], layout))
            ),
        ]

    def _stems(self, name: str, mapped: Sequence[MappedTensor], layout: Layout) -> tuple[str, ...]:
        """Return how the names of a format's tensors begin, biases included."""
        own = [each for each in mapped if each.target.rule.is_linear and self.formats.of(each.module) == name]
        return tuple(layout.whole(each.target).name.removesuffix("weight") for each in own)

    def _excluded(self, algorithm: str) -> Iterator[str]:
        yield from (name for name in DEFAULT_EXCLUDED if not (name == f"*{HEAD}" and self.formats.has_head))
        if algorithm == WEIGHT_ONLY:
            # The loader's second list, of tensors, is replaced as well.
            yield "*shared_expert_gate.weight"
        for module in self.formats.plain:
            yield module
            if algorithm == WEIGHT_ONLY:
                yield f"{module}.weight"


def as_quantized(
    mapped: Sequence[MappedTensor], formats: LayerFormats, names: Container[str]
) -> list[MappedTensor]:
    """Return the tensors with the layers of some formats as the only ones to quantize."""
    return [
        _marked(each, quantizable=formats.of(each.module) in names)
        if each.module in formats.formats and each.target.name.endswith(".weight")
        else each
        for each in mapped
    ]


def _marked(tensor: MappedTensor, *, quantizable: bool) -> MappedTensor:
    rule = replace(tensor.target.rule, quantizable=quantizable)
    return replace(tensor, target=replace(tensor.target, rule=rule))
