"""Keys of a checkpoint's ``config.json`` that no tensor follows from, against what the engine has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtkit.catalog.architectures import ARCHITECTURES, Architecture
from trtkit.catalog.architectures.architecture import Numeric
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.positive import is_positive
from trtkit.checkpoint.trtllm_config import DTYPES
from trtkit.errors import Problem

_POSITIONS = "position_embedding_type"


def key_problems(content: Mapping[str, Any], config: ModelConfig) -> list[Problem]:
    """Compare the keys with what the architecture's engine has; ``config`` is what was read from them."""
    arch = ARCHITECTURES[config.architecture]
    allowed: dict[str, tuple[Any, ...]] = {
        "hidden_act": (*dict.fromkeys((*arch.activations.values(), *arch.activations)),),
        "logits_dtype": (*DTYPES, None),
        "tie_word_embeddings": (False, True, None),
        # 1 stands for columns: the shapes are those of rows.
        "embedding_sharding_dim": (0, None),
    }
    if _POSITIONS not in arch.numerics:
        allowed[_POSITIONS] = (arch.engine_config(config)[_POSITIONS],)
    problems = [
        Problem(f"is {content.get(key)!r}, and {arch.name} engines take {_text(values)}", key=key)
        for key, values in allowed.items()
        if not _is_one_of(content.get(key), values)
    ]
    problems += [
        Problem(f"is {content[key]!r}, which cannot be", key=key)
        for key, spec in arch.numerics.items()
        if not _fits(content[key], spec)
    ]
    return [*problems, *_rope_problems(content.get("rotary_scaling"), arch)]


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    # 0 and False are equal, and not the same.
    return any(type(value) is type(each) and value == each for each in allowed)


def _text(values: tuple[Any, ...]) -> str:
    return " or ".join(str(value) for value in values if value is not None)


def _fits(value: Any, spec: Numeric) -> bool:
    if spec.words:
        return _is_one_of(value, (*spec.words.values(),))
    if value is None:
        return spec.default is None
    if spec.kind is float:
        return is_positive(value)
    return type(value) is spec.kind and (spec.kind is bool or is_positive(value))


def _rope_problems(scaling: Mapping[str, Any] | None, arch: Architecture) -> Iterator[Problem]:
    if scaling is None:
        return
    names = [scaling[key] for key in ("type", "rope_type") if key in scaling]
    known = ("default", *arch.rope_types)
    if not names or names != names[:1] * len(names) or not _is_one_of(names[0], known):
        message = f"has the type {' and '.join(map(repr, names)) or None}, and {arch.name} engines take {_text(known)}"
        yield Problem(message, key="rotary_scaling")
    elif names[0] != "default":
        for name in arch.rope_types[names[0]].required:
            if not is_positive(scaling.get(name)) and not isinstance(scaling.get(name), list):
                yield Problem("is missing or malformed", key=f"rotary_scaling.{name}")
