"""Rotary embeddings in ``config.json``: the spellings of transformers 4 and 5, reduced to one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures import Architecture
from trtkit.catalog.architectures.architecture import RopeType
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.positive import is_positive
from trtkit.plan.hf_fields import MOST, Fields

_BLOCKS = ("rope_parameters", "rope_scaling")
_PARTIAL = ("partial_rotary_factor",)
_ORIGINAL = "original_max_position_embeddings"
ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", _ORIGINAL})


def read_rope(fields: Fields, arch: Architecture) -> tuple[float, dict[str, Any] | None]:
    """Return the base frequency and TensorRT-LLM's ``rotary_scaling`` (None without scaling)."""
    blocks = {key: _block(fields, key) for key in _BLOCKS}
    flat = {**fields.raw, **{f"{key}.rope_theta": block.get("rope_theta") for key, block in blocks.items()}}
    spellings = (*arch.keys["rotary_base"], *(f"{key}.rope_theta" for key in blocks))
    reader = Fields(flat, fields.file)
    base = reader.number(spellings, arch.defaults["rotary_base"])
    fields.problems += reader.problems
    scalings = [(key, _scaling(fields, key, block, arch)) for key, block in blocks.items() if block]
    if len(scalings) > 1:
        _check_both(fields, arch, blocks, alike=scalings[0][1] == scalings[1][1])
    return base, scalings[0][1] if scalings else None


def _check_both(
    fields: Fields, arch: Architecture, blocks: Mapping[str, Mapping[str, Any]], *, alike: bool
) -> None:
    """Refuse blocks that do not say the same: transformers takes all of rope_scaling, and nothing of the other."""
    outside = {
        "rope_theta": arch.keys["rotary_base"],
        **dict.fromkeys(_PARTIAL, arch.keys.get("rotary_pct", ())),
    }
    new, old = (blocks[key] for key in _BLOCKS)
    lost = [
        name
        for name, keys in outside.items()
        if name in new and name not in old and all(fields.raw.get(key) is None for key in keys)
    ]
    if lost or not alike:
        message = "disagrees with rope_parameters" + f": it lacks {' and '.join(lost)}" * bool(lost)
        fields.error("rope_scaling", message, "remove the one that is wrong")


def read_rotary_pct(fields: Fields, arch: Architecture) -> float:
    """Return the part of each head that is rotated; architectures that rotate all of it name no key for it."""
    if "rotary_pct" not in arch.keys:
        return 1.0
    blocks = {f"{key}.{name}": _block(fields, key).get(name) for key in _BLOCKS for name in _PARTIAL}
    reader = Fields({**fields.raw, **blocks}, fields.file)
    part = reader.number((*arch.keys["rotary_pct"], *blocks), arch.defaults["rotary_pct"])
    if part > 1:
        reader.error(arch.keys["rotary_pct"][0], f"is the part of a head that is rotated, is {part}")
    fields.problems += reader.problems
    return part


def check_rotation(fields: Fields, arch: Architecture, config: ModelConfig) -> None:
    """Refuse a rotated part of a head that has no pairs, and lists and factors that do not fit it."""
    if not arch.keys["rotary_base"]:
        return
    key = arch.keys["rotary_pct"][0] if "rotary_pct" in arch.keys else "head_dim"
    width = config.rotary_dim
    if width < 1 or width % 2:
        message = (
            f"rotary embeddings turn pairs, and {width} of {config.head_size} dimensions would be rotated"
        )
        fields.error(key, message)
    scaling = config.rotary_scaling or {}
    for name, value in scaling.items():
        if isinstance(value, list) and len(value) != width // 2:
            fields.error(
                f"rope_scaling.{name}",
                f"has {len(value)} numbers for {width // 2} pairs of rotated dimensions",
            )
    if scaling.get("rope_type") == "longrope":
        _check_long_rope(fields, config, scaling)


def _check_long_rope(fields: Fields, config: ModelConfig, scaling: Mapping[str, Any]) -> None:
    """Refuse factors other than those that TensorRT-LLM derives from the two lengths.

    From 4,096 to 131,072 tokens the factor is 32, and attention is scaled by sqrt(1 + ln 32 / ln 4096) = 1.19.
    """
    original = scaling["original_max_position_embeddings"]
    factor = config.max_position_embeddings / original
    derived = {"factor": factor, "attention_factor": 1.0}
    if factor > 1 and original > 1:
        derived["attention_factor"] = math.sqrt(1 + math.log(factor) / math.log(original))
    for name, value in derived.items():
        if not math.isclose(scaling.get(name, value), value, rel_tol=1e-6):
            message = f"says {scaling[name]!r}, and TensorRT-LLM derives {value:.6g} from the two lengths"
            fields.error(f"rope_scaling.{name}", message)


def _block(fields: Fields, key: str) -> Mapping[str, Any]:
    value = fields.raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fields.error(key, f"must be an object or null, is {value!r}")
        return {}
    if any(isinstance(item, Mapping) for item in value.values()):
        fields.error(key, "differs between kinds of layers, which this architecture's engine cannot do")
        return {}
    return {name: item for name, item in value.items() if item is not None}


def _scaling(fields: Fields, key: str, block: Mapping[str, Any], arch: Architecture) -> dict[str, Any] | None:
    """Check one block against what its type takes; its parameters stay as they are."""
    names = [block[spelling] for spelling in ("type", "rope_type") if spelling in block]
    if len(names) == 2 and names[0] != names[1]:
        fields.error(key, f"type says {names[0]!r} while rope_type says {names[1]!r}")
        return None
    name = str(names[0]) if names else "default"
    values = {k: v for k, v in block.items() if k not in {"type", "rope_type", "rope_theta"}}
    if values.pop("partial_rotary_factor", 1) != 1 and "rotary_pct" not in arch.keys:
        fields.error(f"{key}.partial_rotary_factor", "this architecture's engine rotates whole heads only")
    if name == "default":
        for extra in values:
            fields.error(f"{key}.{extra}", "has no rope_type that would say what it means", "add rope_type")
        return None
    if name not in arch.rope_types:
        known = ", ".join(sorted(arch.rope_types))
        fields.error(
            f"{key}.rope_type", f"{arch.name} engines do not know {name!r}", f"known: default, {known}"
        )
        return None
    _settle_original(fields, key, values, arch.rope_types[name])
    _check_parameters(fields, key, values, arch.rope_types[name])
    # Older loaders read `type`, newer ones `rope_type`.
    return {"type": name, "rope_type": name, **values}


def _settle_original(fields: Fields, key: str, values: dict[str, Any], rope_type: RopeType) -> None:
    """Take the length that is extended from the top level, as transformers does, and refuse another in the block."""
    _, outside = fields.value((_ORIGINAL,), rope_type.original_default)
    if _ORIGINAL not in rope_type.required or outside is None:
        return
    inside, values[_ORIGINAL] = values.get(_ORIGINAL, outside), outside
    if inside != outside:
        message = (
            f"says {inside!r}, and transformers takes {outside!r}: what stands beside {key}, or its default"
        )
        fields.error(f"{key}.{_ORIGINAL}", message, f"say {_ORIGINAL} once, beside {key}")


def _check_parameters(fields: Fields, key: str, values: dict[str, Any], rope_type: RopeType) -> None:
    for name in rope_type.required:
        if name not in values:
            fields.error(f"{key}.{name}", "the parameter is missing")
    for name in list(values):
        if name in rope_type.fixed:
            if values.pop(name) not in rope_type.fixed[name]:
                fields.error(
                    f"{key}.{name}",
                    "TensorRT-LLM does not read this parameter: dropping it would change the result",
                )
        elif name not in rope_type.required + rope_type.optional:
            fields.error(f"{key}.{name}", "not a parameter of this rope type")
        elif name in rope_type.lists:
            if not isinstance(values[name], list) or not all(map(is_positive, values[name])):
                fields.error(f"{key}.{name}", "must be a list of positive numbers")
        elif not is_positive(values[name]) or values[name] > MOST:
            fields.error(f"{key}.{name}", f"must be a positive number up to 2**31, is {values[name]!r}")
    missing = [name for name in rope_type.together if name not in values]
    if 0 < len(missing) < len(rope_type.together):
        message = "is missing, and the engine would not take the others as the model does without it"
        fields.error(f"{key}.{missing[0]}", message, "give all of them or none, as the model was trained")
    bands: list[Any] = [values.get(f"{band}_freq_factor") for band in ("low", "high")]
    if all(map(is_positive, bands)) and bands[0] >= bands[1]:
        fields.error(
            f"{key}.high_freq_factor", f"must be above low_freq_factor, {bands[0]!r}, is {bands[1]!r}"
        )
