"""What a conversion does with a mapped model: which tensors it writes, and what ``config.json`` says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from trtkit.checkpoint.jobs import Job, Layout, plain_jobs
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.errors import Problem
from trtkit.plan.types import QuantPlan

WEIGHT_ONLY = "W8A16"
_LEAST = 64
_PADDING = ", or pad the gated MLP (intermediate_size) with zeros in the source"


class Recipe(Protocol):
    """One way to write a model."""

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The ``quantization`` block of ``config.json``: keyword arguments of the loader, so no more than it knows."""

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Return why the model cannot be written this way; found before anything is read or written."""

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return the work, in an order that reads the source front to back."""


@runtime_checkable
class Baking(Protocol):
    """A recipe whose weights may be in the layout of one family of GPUs."""

    @property
    def baked_for(self) -> Mapping[str, Any]:
        """What they depend on, for ``config.json``; empty when they fit every GPU."""


@runtime_checkable
class ByLayer(Protocol):
    """A recipe whose layers may have formats of their own."""

    @property
    def layer_blocks(self) -> Mapping[str, Mapping[str, Any]]:
        """The block of each quantized layer, for ``quant_cfg.json``; empty where ``config.json`` says it all."""


@dataclass(frozen=True)
class Plain:
    """Takes every tensor over; INT8 weight-only too, whose weights TensorRT-LLM quantizes when it builds."""

    plan: QuantPlan

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The algorithm's name alone."""
        return {"quant_algo": self.plan.quant_algo, "kv_cache_quant_algo": self.plan.kv_cache_quant_algo}

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Refuse weights that are quantized already, and weight-only layers that loaders would pad."""
        quantized = [
            Problem("is quantized already", key=source.name, hint="leave the weights' format to the source")
            for tensor in mapped
            for source in tensor.sources
            if not source.is_plain
        ]
        sides = side_problems(mapped, layout, self.plan) if self.plan.quant_algo == WEIGHT_ONLY else []
        return quantized or sides

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return a copy of every tensor."""
        return plain_jobs(mapped, layout)


def side_problems(
    mapped: Sequence[MappedTensor], layout: Layout, plan: QuantPlan, unit: int = _LEAST
) -> list[Problem]:
    """Return the linear layers whose sides are no multiple of ``unit`` times the ranks that share them.

    TensorRT-LLM pads such layers by itself and then finds the checkpoint's shapes wrong.
    """
    problems = []
    for tensor in mapped:
        target, ranks = tensor.target, layout.ranks
        multiple = unit * (ranks.moe_tp if target.rule.per_expert else ranks.tp)
        if target.rule.is_linear and any(side % multiple for side in target.shape[-2:]):
            message = f"{plan.weights} needs both sides to be multiples of {multiple}, the layer is "
            message += f"{target.shape[-2]} x {target.shape[-1]}"
            fits = unit > _LEAST and not any(side % (multiple // unit * _LEAST) for side in target.shape[-2:])
            smaller = "use groups of 64, " if fits and plan.weights != "w4a8-awq" else "use "
            hint = f"{smaller}weights: none" + (_PADDING if ".mlp." in target.name else "")
            problems.append(Problem(message, key=target.name, hint=hint))
    return problems
