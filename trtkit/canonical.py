"""Canonical JSON (RFC 8785), so that equal content has equal bytes, and the key that follows from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_LONGEST = 21
"""Digits of the longest integer that is not written with an exponent."""


def canonical_json(value: Mapping[str, Any]) -> str:
    """Return the one text that RFC 8785 has for a value.

    What it has no form for becomes text: an integer that is no double by its digits, as the RFC advises, a number that
    is not finite as ``NaN`` or ``Infinity``, a lone surrogate as a character reference. Read again it is the same text.
    """
    import rfc8785

    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "xmlcharrefreplace")
    return rfc8785.dumps(json.loads(text, parse_constant=str, parse_int=_integer)).decode()


def content_key(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of a content."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _integer(digits: str) -> int | float | str:
    """Return the number that is written with these digits; the digits where there is none: 2**53 + 1 has its own."""
    import rfc8785

    number = int(digits)
    if abs(number) < 2**53:
        return number
    is_double = len(digits.lstrip("-")) <= _LONGEST and rfc8785.dumps(float(number)) == digits.encode()
    return float(number) if is_double else digits
