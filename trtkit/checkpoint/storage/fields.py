"""Fields of quantization blocks; what is wrong with one is a ``ValueError`` for the caller to place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GROUP_SIZES = (64, 128)
"""Columns that may share a scale in TensorRT-LLM's INT4 kernels; 256 builds and fails when it runs."""


def expect(block: Mapping[str, Any], key: str, values: tuple[Any, ...], *, default: Any = None) -> Any:
    """Return a field that must have one of ``values``; null means the same as absence.

    Raises:
        ValueError: It has another one.
    """
    value = default if block.get(key) is None else block[key]
    # True is 1 for Python, and here it is not.
    if not any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in values):
        known = " or ".join(repr(each) for each in values)
        raise ValueError(f"{key} is {value!r}; what can be taken over is {known}")
    return value


def flag(block: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """Return a truth value; null means the same as absence.

    Raises:
        ValueError: It is something else.
    """
    value = default if block.get(key) is None else block[key]
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}, not true or false")  # noqa: TRY004 - as all others
    return value


def group_size(value: Any) -> int:
    """Return a number of columns that engines have.

    Raises:
        ValueError: They do not.
    """
    if isinstance(value, bool) or value not in GROUP_SIZES:
        raise ValueError(f"group_size is {value!r}; engines have {' and '.join(map(str, GROUP_SIZES))}")
    return int(value)


def section(block: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """Return an object inside of the block; None where it is null or absent.

    Raises:
        ValueError: It is something else.
    """
    value = block.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{key} is no object")
    return value
