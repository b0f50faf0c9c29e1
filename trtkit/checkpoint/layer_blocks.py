"""Which layers of a checkpoint have which quantization: one block for all, some left plain, or a block each.

``exclude_modules`` of ``config.json`` names what loaders leave plain. With ``MIXED_PRECISION``, ``quant_cfg.json``
beside it has a block for every layer that is quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trtkit.catalog.schemes import DEFAULT_EXCLUDED, MIXABLE, MIXED, PARTIAL, SCHEMES, UNGROUPED
from trtkit.checkpoint.hf import read_json
from trtkit.errors import InputError, Problem
from trtkit.plan.layers import HEAD, unmatched

QUANT_CFG = "quant_cfg.json"
_EXCLUDE, _LAYERS, _CACHE = "quantization.exclude_modules", "quantized_layers", "kv_cache_quant_algo"
_AGAIN = "convert the source again"

Blocks = Mapping[str, Mapping[str, Any]]


def read_layer_blocks(folder: Path, quantization: Mapping[str, Any]) -> Blocks:
    """Return the blocks of ``quant_cfg.json``; none where ``config.json`` has one for all layers.

    Raises:
        InputError: The file is missing, is none, or contradicts ``config.json``.
    """
    if quantization.get("quant_algo") != MIXED:
        return {}
    path = folder / QUANT_CFG
    content = read_json(path)
    layers = content.get(_LAYERS)
    if not isinstance(layers, Mapping) or not layers or not all(map(_is_block, layers.values())):
        message = f"{_LAYERS} is no table of layers with a quant_algo of {', '.join(MIXABLE)} each"
        raise InputError(message, path=path, hint=_AGAIN)
    for key in ("quant_algo", _CACHE):
        if content.get(key) != quantization.get(key):
            message = f"{key} is {content.get(key)!r} here and {quantization.get(key)!r} in config.json"
            raise InputError(message, path=path, hint=_AGAIN)
    return layers


def write_layer_blocks(quantization: Mapping[str, Any], layers: Blocks) -> dict[str, Any]:
    """Return the content of ``quant_cfg.json``."""
    names = {key: quantization.get(key) for key in ("quant_algo", _CACHE)}
    return {**names, _LAYERS: {module: dict(block) for module, block in layers.items()}}


def block_of(quantization: Mapping[str, Any], layers: Blocks, module: str) -> Mapping[str, Any]:
    """Return the block that holds for one layer; its ``quant_algo`` is None where the layer is plain."""
    algorithm = quantization.get("quant_algo")
    plain = {**quantization, "quant_algo": None}
    if algorithm == MIXED:
        own = layers.get(module)
        cache = {_CACHE: quantization.get(_CACHE)}
        return plain if own is None else {**cache, **SCHEMES[own["quant_algo"]].flags, **own}
    if module == HEAD and algorithm != "FP8":
        return plain
    # Loaders do not ask the list for the other algorithms, whose heads are plain always.
    takes_list = algorithm in PARTIAL
    return plain if takes_list and is_excluded(module, quantization.get("exclude_modules")) else quantization


def is_excluded(module: str, patterns: Sequence[str] | None) -> bool:
    """Return whether loaders leave a module plain; None stands for their own list."""
    return any(
        fnmatchcase(module, pattern) for pattern in (DEFAULT_EXCLUDED if patterns is None else patterns)
    )


def layer_block_problems(
    quantization: Mapping[str, Any], layers: Blocks, linear: Sequence[str], tables: Sequence[str]
) -> Iterator[Problem]:
    """Yield names that match nothing, and lists that loaders understand in different ways.

    Args:
        quantization: The block of ``config.json``.
        layers: Those of ``quant_cfg.json``.
        linear: Modules that quantization replaces.
        tables: Matrices that it does not: embeddings, routers, the head.
    """
    algorithm, patterns = quantization.get("quant_algo"), quantization.get("exclude_modules")
    yield from unmatched([(f"{_LAYERS}.{name}", name) for name in layers], (*linear, HEAD))
    yield from _branch_problems({name: block_of(quantization, layers, name) for name in linear})
    yield from _kernel_problems(layers)
    if patterns is None or algorithm is None:
        return
    known = (*linear, *tables)
    # Weight-only loaders look for names of tensors too.
    weights = tuple(f"{name}.weight" for name in known) if algorithm == "W8A16" else ()
    own = [name for name in patterns if not (weights and name.removesuffix(".weight") in DEFAULT_EXCLUDED)]
    yield from unmatched([(_EXCLUDE, name) for name in own], (*known, *weights))
    left = [name for name in linear if is_excluded(name, patterns)]
    if algorithm == MIXED:
        yield Problem("is for one format, and quant_cfg.json names the layers", _EXCLUDE, "remove it")
    elif left and algorithm not in PARTIAL:
        message = f"names {left[0]}, and {algorithm} loaders quantize every layer whatever it says"
        yield Problem(message, _EXCLUDE, "remove it, or convert to fp8 or int8-wo")
    yield from _lacking(str(algorithm), patterns, tables)
    yield from _read_differently(str(algorithm), patterns, left)


def _lacking(algorithm: str, patterns: Sequence[str], tables: Sequence[str]) -> Iterator[Problem]:
    """Yield what the loader's own list would leave plain, and this one does not: it takes that one's place."""
    for table in tables:
        is_embedding = table.endswith("embedding")
        fine = (table == HEAD and algorithm == "FP8") or (is_embedding and algorithm != "W8A16")
        if is_excluded(table, None) and not fine and not is_excluded(table, patterns):
            message = f"takes the place of the loader's list and lacks {table}, which is plain"
            yield Problem(message, _EXCLUDE, f"add *{table.rpartition('.')[2]}")


def _read_differently(algorithm: str, patterns: Sequence[str], left: Sequence[str]) -> Iterator[Problem]:
    """Yield layers that one part of the loader would find in the list, and another would not."""
    for module in left:
        begins = any(
            name == module or (name.endswith("*") and module.startswith(name[:-1])) for name in patterns
        )
        if algorithm == "FP8" and ".mlp." in module and not begins:
            message = (
                f"leaves {module} plain by a pattern that the loader's joining of branches does not follow"
            )
            yield Problem(message, _EXCLUDE, f"name it from the beginning: {module.rpartition('.')[0]}*")
        if algorithm == "W8A16" and not is_excluded(f"{module}.weight", patterns):
            message = f"names {module}, and weight-only loaders look for {module}.weight too"
            yield Problem(message, _EXCLUDE, f"add {module}.weight")


def _branch_problems(blocks: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    for module, block in blocks.items():
        other = blocks.get(module.removesuffix(".gate") + ".fc", block) if module.endswith(".gate") else block
        if other.get("quant_algo") != block.get("quant_algo"):
            message = f"is {block.get('quant_algo')}, and the branch beside it {other.get('quant_algo')}"
            yield Problem(f"{message}: engines join them", module, _AGAIN)


def _kernel_problems(layers: Blocks) -> Iterator[Problem]:
    """Yield INT8 layers beside INT4 groups, which the builder would read by the kernel of those."""
    grouped = [name for name, block in layers.items() if str(block["quant_algo"]).startswith("W4")]
    for module, block in layers.items():
        if grouped and block["quant_algo"] in UNGROUPED:
            message = f"is {block['quant_algo']}, and {grouped[0]} has INT4 groups: engines have one kernel for both"
            yield Problem(message, module, "convert again with fp8 for one of them")


def _is_block(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("quant_algo") in MIXABLE
