"""GGUF files → Hugging Face folder, without torch and without a network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.cast import cast
from trtkit.checkpoint.gguf.config import (
    SPECIAL_TOKENS,
    check_heads,
    check_settings,
    make_config,
    settings_named,
)
from trtkit.checkpoint.gguf.families import FAMILIES, family_of
from trtkit.checkpoint.gguf.family import Family
from trtkit.checkpoint.gguf.file import USE_FOLDER, GgufFile, GgufTensor, open_gguf
from trtkit.checkpoint.gguf.rope import ROPE_TENSORS
from trtkit.checkpoint.gguf.tokenizer import tokenizer_files
from trtkit.checkpoint.gguf.weights import Order, Weight, dtype_of
from trtkit.checkpoint.inventory import record_files
from trtkit.checkpoint.mapping import map_tensors
from trtkit.checkpoint.progress import Progress, silent
from trtkit.checkpoint.safetensors import SafetensorsWriter, TensorInfo
from trtkit.checkpoint.staging import staged_folder, write_json
from trtkit.errors import InputError
from trtkit.plan.hf_config import parse_hf_config

REVISION = 3
"""Part of the name of what is kept: raised when the same file is converted differently."""

_MERGE = "an adapter has to be merged into its model first"
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<stem>\w+)\.(?P<part>weight|bias)")


def convert_gguf(path: Path, out: Path, *, progress: Progress = silent) -> None:
    """Write ``out``: config, generation config, ``model.safetensors``, tokenizer with chat template.

    Every tensor keeps its type; those that are quantized become bfloat16.
    A tokenizer that cannot be rebuilt exactly is left out; ``tokenizer_config.json`` then says why.

    Raises:
        InputError: The file is damaged, or holds something that would change the result if it were left out.
        EnvironmentLacks: The ``gguf`` library is not installed.
    """
    file = open_gguf(path)
    family = _family(file)
    check_settings(file, family)
    weights = _weights(file, family)
    config = make_config(file, family)
    with settings_named(file, family):
        model, _ = parse_hf_config(config, file=str(path))
    check_heads(file, model)
    infos = {
        name: TensorInfo(name, dtype_of(weight.source.kind), weight.shape, weight.source.path, 0)
        for name, weight in weights.items()
    }
    with settings_named(file, family):
        map_tensors(model, infos, file=str(path))
    files = {
        "config.json": config,
        "generation_config.json": {key: config[key] for key in SPECIAL_TOKENS if config[key] is not None},
        **tokenizer_files(file, max_length=model.max_position_embeddings),
    }
    with staged_folder(out) as staging:
        _write_tensors(staging / "model.safetensors", weights, infos, model, progress)
        for name, content in files.items():
            write_json(staging / name, content)
        record_files(staging)


def _family(file: GgufFile) -> Family:
    kind = file.fields.get("general.type", "model")
    if kind != "model":
        hint = _MERGE if kind == "adapter" else ""
        raise InputError(f"holds no model but {kind!r}", path=file.path, hint=hint)
    if adapter := [name for name in file.fields if name.startswith("adapter.")]:
        message = f"holds an adapter as well ({', '.join(adapter)})"
        raise InputError(message, path=file.path, hint=_MERGE)
    family = family_of(file)
    if family is None:
        message = f"the architecture {file.architecture!r} is not supported"
        raise InputError(message, path=file.path, hint=f"supported: {', '.join(FAMILIES)}")
    return family


def _weights(file: GgufFile, family: Family) -> dict[str, Weight]:
    """Return the tensors by their Hugging Face names."""
    weights: dict[str, Weight] = {}
    unknown = []
    for name, tensor in file.tensors.items():
        if name in ROPE_TENSORS and family.rotates:
            continue
        found = _named(tensor, family)
        if not found or not all(weight.is_readable for weight in found):
            unknown.append(f"{name} ({tensor.kind})")
        weights.update({weight.name: weight for weight in found})
    if unknown:
        message = f"holds tensors that cannot be carried over: {', '.join(unknown)}"
        raise InputError(message, path=file.path, hint=USE_FOLDER)
    return weights


def _named(tensor: GgufTensor, family: Family) -> list[Weight]:
    """Return what a tensor holds: one weight, one for each expert, or nothing that is known."""
    match = _NAME.fullmatch(tensor.name)
    if match is None:
        return []
    stem, layer = match["stem"], match["layer"]
    pattern = family.tensors.get(stem if layer is None else f"blk.{{layer}}.{stem}")
    if pattern is None:
        return []
    order = family.orders.get(stem, Order.SAME)
    # A bias has no columns.
    if len(tensor.shape) == 1 and order is Order.TRANSPOSED:
        order = Order.SAME
    plus = family.norm_plus if stem.endswith("norm") else 0.0
    experts = range(tensor.shape[0]) if "{expert}" in pattern else (None,)
    return [
        Weight(
            f"{pattern.format(layer=layer, expert=expert)}.{match['part']}",
            tensor,
            order,
            expert,
            plus,
        )
        for expert in experts
    ]


def _write_tensors(
    path: Path,
    weights: Mapping[str, Weight],
    infos: Mapping[str, TensorInfo],
    model: ModelConfig,
    progress: Progress,
) -> None:
    done = 0
    with SafetensorsWriter(path, infos.values()) as writer:
        for spec in writer.order:
            weight = weights[spec.name]
            blocks = weight.blocks(model)
            writer.write(
                spec,
                (cast(block, spec.dtype, name=spec.name, path=weight.source.path) for block in blocks),
            )
            done += spec.nbytes
            progress("convert GGUF", done, writer.nbytes)
