"""Typed access to the fields of a ``config.json``: every fault becomes a problem with its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtkit.catalog.positive import is_positive
from trtkit.errors import Problem, Severity

MISSING: Any = object()
MOST = 2**31 - 1
"""Engines count in int32."""
MOST_LAYERS = 10_000
"""Layers and experts are looked at one by one; no model has a tenth of that."""


class Fields:
    """A configuration and the problems found in it so far. A key whose value is null counts as absent."""

    def __init__(self, raw: Mapping[str, Any], file: str) -> None:
        self.raw = raw
        self.file = file
        self.problems: list[Problem] = []

    def error(self, key: str, message: str, hint: str = "") -> None:
        """Record an error."""
        self.problems.append(Problem(message, key=key, hint=hint, file=self.file))

    def warn(self, key: str, message: str, hint: str = "") -> None:
        """Record a warning."""
        self.problems.append(Problem(message, key=key, hint=hint, file=self.file, severity=Severity.WARNING))

    def value(self, keys: Sequence[str], default: Any = MISSING) -> tuple[str, Any]:
        """Return the first spelling present and its value; spellings that disagree are an error."""
        found = [(key, self.raw[key]) for key in keys if self.raw.get(key) is not None]
        if not found:
            if default is MISSING:
                self.error(
                    keys[0], "the field is missing", "take the file from the model's publisher, complete"
                )
            return keys[0] if keys else "", default
        key, value = found[0]
        for other, its_value in found[1:]:
            if its_value != value:
                self.error(
                    other, f"says {its_value!r} while {key} says {value!r}", "remove the one that is wrong"
                )
        return key, value

    def count(self, keys: Sequence[str], default: Any = MISSING, most: int = MOST) -> int:
        """Return a positive integer, at most ``most``; 1 stands in for a value that was reported as wrong."""
        key, value = self.value(keys, default)
        if value is None or value is MISSING:
            return 0 if value is None else 1
        if type(value) is not int or not 0 < value <= most:
            self.error(key, f"must be a positive whole number, at most {most}, is {value!r}")
            return 1
        return value

    def layers(self, keys: Sequence[str], default: Any = MISSING) -> int:
        """Return a number of layers or experts, as :meth:`count` does."""
        return self.count(keys, default, MOST_LAYERS)

    def number(self, keys: Sequence[str], default: Any = MISSING) -> float:
        """Return a positive finite number; 1.0 stands in for a value that was reported as wrong."""
        key, value = self.value(keys, default)
        if value is MISSING:
            return 1.0
        if not is_positive(value):
            self.error(key, f"must be a positive number, is {value!r}")
            return 1.0
        return float(value)

    def flag(self, keys: Sequence[str], default: Any = MISSING) -> bool:
        """Return a boolean."""
        key, value = self.value(keys, default)
        if value is not MISSING and not isinstance(value, bool):
            self.error(key, f"must be true or false, is {value!r}")
        return value is True
