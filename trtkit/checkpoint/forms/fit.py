"""Whether the engine can have the layers of a quantized source, from shapes and small tensors alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from trtkit.catalog.architectures.architecture import Arrange, Split
from trtkit.catalog.schemes import PARTIAL
from trtkit.checkpoint.forms.int4 import PRE_QUANT
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.storage.quantized import AUTO, ZERO_PARTS, Quantized
from trtkit.checkpoint.storage.storage import Stored
from trtkit.errors import Problem
from trtkit.plan.layers import PLAIN, LayerFormats, uneven_branches, uneven_stages

_NO_QK_NORM = ("FP8_PER_CHANNEL_PER_TOKEN", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN")
"""Algorithms whose attention layer in the engine has no norms of queries and keys."""
_LAYER = re.compile(r"\.\d+\.")
_ORIGINAL = "give the checkpoint that it was quantized from"


def fit_problems(
    storage: Quantized,
    algorithm: str,
    mapped: Sequence[MappedTensor],
    layout: Layout,
    plain: Sequence[str],
) -> Iterator[Problem]:
    """Yield what the engine cannot honour; ``plain`` are the linear layers that it is told to leave plain."""
    linear = [tensor for tensor in mapped if tensor.target.rule.is_linear]
    yield from _plain_problems(storage, algorithm, linear, layout, plain)
    linear = [tensor for tensor in linear if not tensor.is_plain]
    if algorithm in _NO_QK_NORM and any(".q_layernorm." in tensor.target.name for tensor in mapped):
        yield Problem(
            f"{algorithm} engines have no norms of queries and keys", key="quantization", hint=_ORIGINAL
        )
    if storage.packing is not None and layout.dtype == "float32":
        hint = "use float16 or bfloat16"
        yield Problem("engines with INT4 weights compute in 16 bits, not in float32", key="dtype", hint=hint)
    if storage.packing is not None and layout.config.head_size % 8:
        # Rows are packed by twos and laid out by fours; a head must not share a byte with the next one.
        message = f"INT4 needs heads of a multiple of 8, they are {layout.config.head_size} wide"
        yield Problem(message, key="head_dim", hint=_ORIGINAL)
    for tensor in linear:
        yield from _layer_problems(storage, algorithm, tensor)
        if storage.packing is not None:
            yield from _side_problems(storage, tensor, layout)
    yield from _values_problems(mapped)
    yield from _prequant_problems(storage, [source for tensor in linear for source in tensor.sources])


def _layer_problems(storage: Quantized, algorithm: str, tensor: MappedTensor) -> Iterator[Problem]:
    rule, name = tensor.target.rule, tensor.target.name
    if algorithm != "FP8" and (rule.per_expert or ".shared_expert." in name):
        message = f"{storage.method} layers of experts cannot be taken over as {algorithm}"
        yield Problem(message, key=name, hint=_ORIGINAL)
    elif rule.arrange is Arrange.TRANSPOSED:
        yield Problem("a quantized Conv1D cannot be taken over", key=name, hint=_ORIGINAL)
    for source in tensor.sources:
        if algorithm == "W4A16_GPTQ" and "pre_quant_scale" in source.parts:
            message = f"{algorithm} layers do not scale what goes in"
            hint = "leave the target GPU out: the form that fits every GPU does"
            yield Problem(message, key=source.parts["pre_quant_scale"].name, hint=hint)
        if source.is_plain:
            message = "is not quantized, and what engines join with it is"
            yield Problem(message, key=source.name, hint="quantize again without ignoring it")


def _plain_problems(
    storage: Quantized,
    algorithm: str,
    linear: Sequence[MappedTensor],
    layout: Layout,
    told: Sequence[str],
) -> Iterator[Problem]:
    """Yield layers that the source has left plain where the engine cannot."""
    plain = [tensor for tensor in linear if tensor.is_plain]
    if algorithm not in PARTIAL or {each.module for each in plain} - set(told):
        message = f"is not quantized, and {algorithm} engines have all linear layers quantized or none"
        for tensor in plain:
            yield Problem(message, key=tensor.sources[0].name, hint="quantize again without ignoring it")
        return
    formats = LayerFormats({each.module: PLAIN if each.is_plain else storage.weights[0] for each in linear})
    yield from uneven_branches("quantization", formats)
    yield from uneven_stages("quantization", formats, layout.ranks.pp)
    for tensor in plain:
        if tensor.target.rule.per_expert:
            message = "has another format than the rest of the model, and engines quantize experts alike"
            yield Problem(message, key=tensor.target.name, hint=_ORIGINAL)
        elif storage.kv_cache != AUTO and tensor.target.rule.split is Split.QKV:
            message = "is not quantized, so that nothing says how its part of the KV cache is scaled"
            hint = "leave the cache's format out: --kv-cache auto"
            yield Problem(message, key=tensor.sources[0].name, hint=hint)


def _prequant_problems(storage: Quantized, sources: Sequence[Stored]) -> Iterator[Problem]:
    """Yield scales of inputs that some layers of a kind have and others lack, or that contradict the configuration."""
    scaled = {_LAYER.sub(".", source.name) for source in sources if PRE_QUANT in source.parts}
    for source in sources:
        if PRE_QUANT not in source.parts and _LAYER.sub(".", source.name) in scaled:
            message = f"has no {PRE_QUANT}, and the same layer elsewhere has one"
            yield Problem(message, key=source.name, hint="download the checkpoint whole")
    if storage.pre_quant_scale is False and scaled:
        message = f"is false, and there are such tensors: {', '.join(sorted(scaled))}"
        yield Problem(message, key=PRE_QUANT, hint="make it true if the model was made with them")
    if storage.pre_quant_scale and not scaled:
        message = "is true, and no layer has such a tensor"
        hint = "download the checkpoint whole, or make it false if they are in the layers before"
        yield Problem(message, key=PRE_QUANT, hint=hint)


def _side_problems(storage: Quantized, tensor: MappedTensor, layout: Layout) -> Iterator[Problem]:
    """Yield the sides that TensorRT-LLM would pad, and then find the checkpoint's shapes wrong."""
    unit = max(64, storage.group_size)
    out, width = tensor.target.shape[-2:]
    if tensor.target.rule.split is Split.QKV:
        # Ranks that share a KV head hold it twice.
        out = sum(shard.shape[-2] for shard in layout.whole(tensor.target).shards)
    multiple = unit * layout.ranks.tp
    if out % multiple or width % multiple:
        sizes = [tp for tp in range(1, layout.ranks.tp) if not math.gcd(out, width) % (unit * tp)]
        fewer = f"numbers of ranks that fit: {', '.join(map(str, sizes))}" if sizes else _ORIGINAL
        message = (
            f"INT4 with groups of {storage.group_size} needs both sides to be multiples of {multiple}, "
            f"the layer is {out} x {width}"
        )
        yield Problem(message, key=tensor.target.name, hint=fewer)


def _values_problems(mapped: Sequence[MappedTensor]) -> Iterator[Problem]:
    """Yield tensors that only zeros could be left out of, and that hold something else."""
    biases = {source.name for tensor in mapped for source in tensor.sources if source.name.endswith(".bias")}
    for tensor in mapped:
        for source in tensor.sources:
            for key in ZERO_PARTS:
                info = source.parts.get(key)
                packed = info is not None and info.dtype == "int32"
                if info is not None and info.name not in biases and not packed and info.read().any():
                    hint = "correct the flags of biases in config.json" if key == "bias" else _ORIGINAL
                    yield Problem(
                        "holds other values than zero, and nothing uses it", key=info.name, hint=hint
                    )
