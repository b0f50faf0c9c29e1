"""JSON objects: keys that are there once, since of two parsers take the last without a word, and objects within."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


class NamedTwiceError(Exception):
    """Keys that an object has more than once."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"names twice: {', '.join(keys)}")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; for ``json.loads(..., object_pairs_hook=once)``.

    Raises:
        NamedTwiceError: Some keys are there more than once.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise NamedTwiceError([key for key, count in counts.items() if count > 1])
    return found


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object within another; empty where it is absent or something else."""
    found = config.get(key)
    return found if isinstance(found, Mapping) else {}
