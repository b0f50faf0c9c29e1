"""Settings of a GGUF file → ``config.json``; what nobody understands is refused by name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.gguf.family import Family
from trtkit.checkpoint.gguf.file import USE_FOLDER, GgufFile
from trtkit.checkpoint.gguf.rope import ROPE_SETTINGS, ROPE_TENSORS, read_rope, shortest
from trtkit.checkpoint.gguf.weights import dtype_of
from trtkit.errors import ContractError, InputError, Problem

_CONFIG = "config.json"
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Read apart from the keys of a family.
_COMMON = ROPE_SETTINGS | {"attention.value_length", "vocab_size"}


def check_settings(file: GgufFile, family: Family) -> None:
    """Refuse settings that cannot be carried over.

    Raises:
        InputError: There are some; all of them are listed.
    """
    start = f"{file.architecture}."
    settings = {name.removeprefix(start): file.fields[name] for name in file.fields if name.startswith(start)}
    known = _COMMON | family.keys.keys()
    bad = [
        f"{start}{name} = {_text(value)}" if name in family.fixed else f"{start}{name}"
        for name, value in sorted(settings.items())
        if (name not in known and name not in family.fixed) or _differs(family, name, value)
    ]
    if bad:
        message = f"holds settings that cannot be carried over: {', '.join(bad)}"
        raise InputError(message, path=file.path, hint=USE_FOLDER)


def _differs(family: Family, name: str, value: Any) -> bool:
    return name in family.fixed and value not in family.fixed[name]


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 40 else f"{text[:40]}..."


def make_config(file: GgufFile, family: Family) -> dict[str, Any]:
    """Return ``config.json``; what the file lacks is null."""
    config = {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        **{key: shortest(file.get(setting)) for setting, key in family.keys.items()},
        **_heads(file, family),
        **family.constants,
        **{key: f"blk.0.{tensor}" in file.tensors for key, tensor in family.flags.items()},
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": _vocab_size(file),
        **_special_tokens(file),
        "torch_dtype": _dtype(file),
    }
    if family.rotates:
        config |= read_rope(file)
    if family.rotary_pct is not None:
        config[family.rotary_pct] = _rotary_pct(file)
    return config | {key: shortest(value) for key, value in family.derive(file).items()}


def _heads(file: GgufFile, family: Family) -> dict[str, Any]:
    """Return what llama.cpp takes for heads that a file says nothing about; classes of transformers differ in that."""
    defaults: dict[str, Callable[[], int]] = {
        "attention.head_count_kv": lambda: file.count("attention.head_count"),
        "attention.key_length": lambda: file.count("embedding_length") // file.count("attention.head_count"),
    }
    return {
        family.keys[setting]: default()
        for setting, default in defaults.items()
        if setting in family.keys and file.get(setting) is None
    }


def check_heads(file: GgufFile, model: ModelConfig) -> None:
    """Refuse heads that are rotated in part where their family rotates all of each, or whose values are wider.

    Raises:
        InputError: They are, or a tensor of the rotation has another length.
    """
    rotated, width = file.get("rope.dimension_count"), file.get("attention.value_length")
    message = ""
    if rotated not in (None, model.rotary_dim):
        message = f"only {rotated} of {model.head_size} dimensions per head are rotated"
    elif width not in (None, model.head_size):
        name = f"{file.architecture}.attention.value_length"
        message = f"{name} is {width}, and keys have {model.head_size} dimensions per head"
    for name in sorted(ROPE_TENSORS & file.tensors.keys()):
        if file.tensors[name].shape != (model.rotary_dim // 2,):
            shape = list(file.tensors[name].shape)
            message = f"{name} has the shape {shape}, and {model.rotary_dim // 2} frequencies are rotated by"
    if message:
        raise InputError(message, path=file.path, hint=USE_FOLDER)


@contextmanager
def settings_named(file: GgufFile, family: Family) -> Iterator[None]:
    """Let problems with ``config.json`` speak of the settings that it was made of."""
    settings = {key: f"{file.architecture}.{setting}" for setting, key in family.keys.items()}
    try:
        yield
    except ContractError as error:
        raise ContractError([_renamed(problem, settings) for problem in error.problems]) from error


def _renamed(problem: Problem, settings: Mapping[str, str]) -> Problem:
    hint = USE_FOLDER if _CONFIG in problem.hint else problem.hint
    message = problem.message.replace(_CONFIG, "the metadata")
    return replace(problem, key=settings.get(problem.key, problem.key), message=message, hint=hint)


def _rotary_pct(file: GgufFile) -> float:
    heads = file.count("attention.head_count")
    rotated, hidden = file.count("rope.dimension_count"), file.count("embedding_length")
    return rotated * heads / hidden


def _vocab_size(file: GgufFile) -> int | None:
    """Return the rows of the embedding: some converters keep fewer of them than the model had."""
    embedding, said = file.tensors.get("token_embd.weight"), file.get("vocab_size")
    rows = embedding.shape[0] if embedding else None
    if None not in (rows, said) and rows != said:
        message = f"{file.architecture}.vocab_size is {said!r}, and token_embd.weight has {rows} rows"
        raise InputError(message, path=file.path, hint=USE_FOLDER)
    return said if rows is None else rows


def _dtype(file: GgufFile) -> str:
    """Return the type of most elements: converters keep norms and routers in float32 beside whatever the rest is."""
    elements: Counter[str] = Counter()
    for tensor in file.tensors.values():
        elements[dtype_of(tensor.kind)] += math.prod(tensor.shape)
    return max(elements, key=lambda dtype: elements[dtype], default="bfloat16")


def _special_tokens(file: GgufFile) -> dict[str, Any]:
    """Return ids; every token that ends a turn ends an answer, as in llama.cpp."""
    ids = {
        key: file.fields.get(f"tokenizer.ggml.{key}") for key in (*_ENDS, "bos_token_id", "padding_token_id")
    }
    ends = list(dict.fromkeys(ids[key] for key in _ENDS if ids[key] is not None))
    return {
        "bos_token_id": ids["bos_token_id"],
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": ids["padding_token_id"],
    }
