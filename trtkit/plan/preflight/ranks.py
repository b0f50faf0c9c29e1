"""The division of layers among ranks, beyond what does not divide at all."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.architectures.architecture import TensorRule
from trtkit.catalog.formats import DEFAULT_GROUP, WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses, warns
from trtkit.plan.parallel import heads_divide
from trtkit.plan.ranks import group_of, share_of
from trtkit.plan.support import works_on
from trtkit.plan.tensors import rules_of, target_shape
from trtkit.plan.types import Plan, Target

_TILE = 64
_USUAL_GPUS = {"gb200": 4, "gh200": 1}
"""GPUs of a machine where they are usually not 8."""
WEIGHT_ONLY = ("int8-wo", "int4-awq", "int4-gptq", "w4a8-awq")


@refuses
def layers_fill_tiles(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A weight-only layer whose sizes do not fill the kernel's tiles pads itself, and the checkpoint no longer fits.

    Each rank's rows and columns must be multiples of 64, or of the group where that is larger.
    """
    name, target = contract.quantization.weights.value, plan.target
    if contract.engine.backend.value != "tensorrt" or target is None or name not in WEIGHT_ONLY:
        return
    tile = tile_of(model, name, contract.quantization.group_size)
    wrong = untiled(model, target.ranks, tile)
    if wrong:
        layer, size = wrong[0]
        message = f"{layer} has {size} channels, no multiple of {tile} on each of {target.ranks.tp} ranks"
        hint = f"{_instead(model, name, tile)}{_other_formats(contract, model, target)}"
        yield Problem(
            message, "engine.tensor_parallel", f"{hint}or pad intermediate_size before the conversion"
        )


@refuses
def groups_fill_rows(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A group of channels that share a scale must not reach over the end of a rank's part."""
    name, target = contract.quantization.weights.value, plan.target
    if target is None or not WEIGHTS[name].group_values:
        return
    group = group_of(model, name, contract.quantization.group_size)
    local = share_of(model, target.ranks)
    for rule in rules_of(model):
        columns = target_shape(rule, local)[-1]
        if rule.is_linear and columns % group:
            message = (
                f"{_layer(rule)} has {columns} input channels on a rank, no multiple of groups of {group}"
            )
            smaller = "groups of 64; " if group > _TILE and name != "w4a8-awq" else ""
            hint = f"{smaller}{_other_formats(contract, model, target)}or fewer ranks"
            yield Problem(message, "quantization.group_size", hint)
            return


def tile_of(model: ModelConfig, weights: str, group_size: int | None) -> int:
    """Return the channels that each rank's part of a layer must be a multiple of."""
    return _TILE if weights == "int8-wo" else max(_TILE, group_of(model, weights, group_size))


def untiled(model: ModelConfig, ranks: Parallelism, tile: int) -> list[tuple[str, int]]:
    """Return the linear layers, with the size that is no multiple of the tile on every rank."""
    wrong = []
    for rule in rules_of(model):
        if rule.is_linear:
            rows, columns = _sizes(rule, model, ranks)
            parts = ranks.moe_tp if rule.per_expert else ranks.tp
            wrong += [(_layer(rule), size) for size in (rows, columns) if size % (tile * parts)]
    return wrong


def _layer(rule: TensorRule) -> str:
    return rule.target.removeprefix("transformer.layers.{layer}.").removesuffix(".weight")


def _sizes(rule: TensorRule, model: ModelConfig, ranks: Parallelism) -> tuple[int, int]:
    rows, columns = target_shape(rule, model)[-2:]
    if rule.target.endswith("attention.qkv.weight"):
        # KV heads that several ranks hold are counted as often.
        rows = target_shape(rule, share_of(model, ranks))[-2] * ranks.tp
    return rows, columns


def _instead(model: ModelConfig, name: str, tile: int) -> str:
    fits = [
        tp
        for tp in (1, 2, 4, 8)
        if heads_divide(model, tp) and model.intermediate_size % tp == 0
        if not untiled(model, Parallelism(tp, 1), tile)
    ]
    lower = f"sizes that fit: {', '.join(map(str, fits))}; " if fits else ""
    group = "groups of 64; " if tile == DEFAULT_GROUP and name != "w4a8-awq" else ""
    return f"{lower}{group}"


def _other_formats(contract: Contract, model: ModelConfig, target: Target) -> str:
    """Return the formats without groups and tiles that work there, for a list of ways out."""
    names = [name for name in ("fp8", "none") if works_on(contract, model, target, name)]
    return f"{' or '.join(names)} weights; " if names else ""


@warns
def fp8_layers_are_aligned(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """FP8 products want multiples of 16; whether others fail or are slow is not known."""
    if contract.quantization.weights.value != "fp8" or plan.target is None:
        return
    for layer, size in untiled(model, plan.target.ranks, 16)[:1]:
        message = f"{layer} has {size} channels, no multiple of 16 on each of {plan.target.ranks.tp} ranks"
        yield Problem(message, "engine.tensor_parallel", "use fewer ranks")


@refuses
def vllm_is_on_one_machine(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Triton's vLLM back end starts its ranks by itself, and no launcher of several machines starts it."""
    if contract.engine.backend.value == "vllm" and plan.target is not None and plan.target.ranks.nodes > 1:
        ranks = plan.target.ranks
        message = f"Triton's vLLM back end runs on one machine, {ranks.world} ranks are on {ranks.nodes}"
        hint = f"at most {ranks.gpus_per_node} ranks, or back end llmapi"
        yield Problem(message, "engine.tensor_parallel", hint)


@warns
def ranks_fit_a_node(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Ranks on several machines need a launcher and a network that all-reduces can wait for."""
    if plan.target is None:
        return
    world, gpus = plan.target.ranks.world, plan.target.ranks.gpus_per_node
    usual = _USUAL_GPUS.get(plan.target.gpu.name, gpus)
    if contract.engine.machine_gpus is None and usual < world <= gpus:
        message = f"{world} ranks are taken to be on one machine, which usually has {usual} GPUs of this kind"
        yield Problem(
            message, "engine.tensor_parallel", f"say how many: engine.gpus_per_node, such as {usual}"
        )
    if world > gpus:
        message = f"{world} ranks are more than the {gpus} GPUs of a machine"
        hint = "share layers inside a machine (tensor_parallel), the stack among machines (pipeline_parallel)"
        yield Problem(message, "engine.tensor_parallel", hint)


@warns
def kv_heads_are_not_repeated(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Beyond the number of KV heads more ranks hold copies: the cache per GPU shrinks no further."""
    if plan.tensor_parallel > model.num_kv_heads:
        message = (
            f"{plan.tensor_parallel} ranks hold {model.num_kv_heads} KV heads, each of them "
            f"{plan.tensor_parallel // model.num_kv_heads} times: {plan.memory.kv_bytes_per_token:,} B per token stay"
        )
        yield Problem(message, "engine.tensor_parallel", f"at most {model.num_kv_heads} for a smaller cache")


RANK_CHECKS = (
    layers_fill_tiles,
    groups_fill_rows,
    fp8_layers_are_aligned,
    vllm_is_on_one_machine,
    ranks_fit_a_node,
    kv_heads_are_not_repeated,
)
