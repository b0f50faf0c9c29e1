"""What llmcompressor writes: ``quant_method: compressed-tensors``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtkit.checkpoint.storage.fields import expect, flag, group_size, section
from trtkit.checkpoint.storage.float8 import fp8_rows, fp8_tensors
from trtkit.checkpoint.storage.modules import Skips, by_name_or_regex
from trtkit.checkpoint.storage.packing import CompressedPacking
from trtkit.checkpoint.storage.quantized import AUTO, Quantized, scale, vanishing
from trtkit.checkpoint.storage.storage import PartSpec

_METHOD, _INPUTS = "compressed-tensors", "input_activations"
_FP8_FORMATS = ("float-quantized", "naive-quantized")
_INT8_FORMATS = ("int-quantized", "naive-quantized")


def read_compressed_tensors(block: Mapping[str, Any]) -> Quantized:
    """Return how such a checkpoint is stored.

    Raises:
        ValueError: Engines cannot take it.
    """
    _check_sparsity(block)
    if block.get("transform_config"):
        raise ValueError("transform_config asks for rotations at run time, which engines do not have")
    if block.get("moe_sparsity_config"):
        raise ValueError("moe_sparsity_config leaves experts out, which engines do not")
    group = _only_group(block)
    weights, skips = section(group, "weights"), by_name_or_regex(block.get("ignore"))
    if weights is None:
        raise ValueError("config_groups has no weights: activations alone are not quantized")
    if group.get("output_activations") is not None:
        raise ValueError("output_activations are quantized, which engines do not do")
    name = str(group.get("format") or block.get("format"))
    kind = f"{weights.get('type', 'int')} {weights.get('num_bits')!r}"
    if kind not in _READERS:
        raise ValueError(f"weights are {kind}; what can be taken over is {', '.join(_READERS)}")
    return _READERS[kind](weights, section(group, "input_activations"), name, skips, _kv_cache(block))


Reader = Callable[[Mapping[str, Any], "Mapping[str, Any] | None", str, Skips, str], Quantized]


def _fp8(
    weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, name: str, skips: Skips, kv_cache: str
) -> Quantized:
    _format(name, _FP8_FORMATS)
    strategy = _scheme("weights", weights, "float", ("tensor", "channel"))
    if inputs is None:
        raise ValueError("activations are not quantized, and engines with FP8 weights quantize them")
    if not flag(inputs, "dynamic", default=False):
        if strategy == "channel":
            raise ValueError(
                "weights have a scale per channel and activations a static one: engines have no such mix"
            )
        _scheme(_INPUTS, inputs, "float", ("tensor",))
        return Quantized(_METHOD, ("fp8",), "FP8", fp8_tensors, skips, kv_cache)
    _scheme(_INPUTS, inputs, "float", ("token",), dynamic=True)
    specs = fp8_rows if strategy == "channel" else _fp8_one_scale
    return Quantized(_METHOD, ("fp8-rowwise",), "FP8_PER_CHANNEL_PER_TOKEN", specs, skips, kv_cache)


def _int8(
    weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, name: str, skips: Skips, kv_cache: str
) -> Quantized:
    _format(name, _INT8_FORMATS)
    _scheme("weights", weights, "int", ("channel",))
    if inputs is None or not flag(inputs, "dynamic", default=False):
        raise ValueError("activations have static scales or none; INT8 is taken over with dynamic ones only")
    _scheme(_INPUTS, inputs, "int", ("token",), dynamic=True)
    algorithm = "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"
    return Quantized(_METHOD, ("int8-sq",), algorithm, _int8_rows, skips, kv_cache)


def _int4(
    weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, name: str, skips: Skips, kv_cache: str
) -> Quantized:
    _format(name, ("pack-quantized",))
    if inputs is not None:
        raise ValueError("weights are int 4 and activations are quantized too, which has no counterpart")
    expect(weights, "strategy", ("group",), default="group")
    expect(weights, "dynamic", (False,), default=False)
    # Of the other orders columns are grouped by activation, and engines know groups of neighbours only.
    expect(weights, "actorder", (False, "weight", "static"), default=False)
    size, symmetric = group_size(weights.get("group_size")), flag(weights, "symmetric", default=True)
    return Quantized(
        _METHOD,
        ("int4-awq", "int4-gptq"),
        "W4A16_AWQ",
        lambda name, shape: _packed(name, shape, size, symmetric=symmetric),
        skips,
        kv_cache,
        group_size=size,
        packing=CompressedPacking(symmetric),
        has_zero_point=not symmetric,
        needs_target=not symmetric,
    )


_READERS: dict[str, Reader] = {"int 4": _int4, "int 8": _int8, "float 8": _fp8}


def _only_group(block: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = section(block, "config_groups") or {}
    found = [group for group in groups.values() if isinstance(group, Mapping)]
    if len(found) != 1:
        raise ValueError(f"config_groups has {len(groups)} groups; engines have one scheme for all layers")
    if found[0].get("targets") not in (["Linear"], None):
        raise ValueError(
            f"targets are {found[0]['targets']!r}; engines have one scheme for all linear layers"
        )
    return found[0]


def _check_sparsity(block: Mapping[str, Any]) -> None:
    sparsity = section(block, "sparsity_config")
    if sparsity and sparsity.get("format", "dense") != "dense":
        raise ValueError(f"sparsity_config packs the weights as {sparsity['format']!r}, which cannot be read")


def _format(name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ValueError(f"format is {name!r}; what can be read of this kind is {' or '.join(known)}")


def _scheme(
    place: str, scheme: Mapping[str, Any], kind: str, strategies: tuple[str, ...], *, dynamic: bool = False
) -> str:
    """Return the strategy of 8-bit values; absent fields have the defaults of compressed-tensors.

    Raises:
        ValueError: It is another scheme, or one that contradicts itself.
    """
    try:
        expect(scheme, "type", (kind,), default="int")
        expect(scheme, "num_bits", (8,), default=8)
        expect(scheme, "dynamic", (dynamic,), default=False)
        # Rows may be said to be groups of all columns.
        rows = scheme.get("group_size") == -1
        strategy: str = expect(scheme, "strategy", strategies, default="channel" if rows else "tensor")
        expect(scheme, "group_size", (None, -1) if strategy == "channel" else (None,))
        expect(scheme, "block_structure", (None,))
        # Engines have no zero points of 8 bits.
        expect(scheme, "symmetric", (True,), default=True)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    return strategy


def _kv_cache(block: Mapping[str, Any]) -> str:
    scheme = section(block, "kv_cache_scheme")
    if scheme is None:
        return AUTO
    _scheme("kv_cache_scheme", scheme, "float", ("tensor",))
    return "fp8"


def _fp8_one_scale(name: str, shape: tuple[int, int]) -> dict[str, PartSpec]:
    return fp8_rows(name, shape) | {"weight_scale": scale(f"{name}.weight_scale")}


def _int8_rows(name: str, shape: tuple[int, int]) -> dict[str, PartSpec]:
    return {
        "weight": PartSpec(f"{name}.weight", shape, ("int8",)),
        "weight_scale": scale(f"{name}.weight_scale", (shape[0], 1)),
        # Early versions wrote the zero points of symmetric weights too.
        "weight_zero_point": vanishing(f"{name}.weight_zero_point", (shape[0], 1), ("int8",)),
    }


def _packed(name: str, shape: tuple[int, int], size: int, *, symmetric: bool) -> dict[str, PartSpec]:
    out, width = shape
    parts = {
        "weight_packed": PartSpec(f"{name}.weight_packed", (out, width // 8), ("int32",)),
        "weight_scale": scale(f"{name}.weight_scale", (out, width // size)),
        "weight_shape": PartSpec(f"{name}.weight_shape", (2,), ("int64", "int32"), optional=True),
    }
    if symmetric:
        return parts
    zeros = PartSpec(f"{name}.weight_zero_point", (out // 8, width // size), ("int32",))
    return parts | {"weight_zero_point": zeros}
