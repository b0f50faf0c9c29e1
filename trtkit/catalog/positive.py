"""Numbers of configurations, which may be anything."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard


def is_positive(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold, above zero and finite."""
    return type(value) in (int, float) and 0 < value <= sys.float_info.max
