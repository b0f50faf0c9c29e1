"""How text is cut before byte-pair encoding, by ``tokenizer.ggml.pre``: another cut gives other tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cut:
    """The steps as ``tokenizer.json`` writes them, and what comes with them."""

    steps: tuple[Mapping[str, Any], ...]
    composes: bool = False
    """Whether characters are composed first (NFC)."""
    ignore_merges: bool = False
    """Whether a piece that is a token as a whole stays one."""
    adds_bos: bool = False
    """Whether texts begin with bos when the file does not say."""


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> tuple[Mapping[str, Any], ...]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return (split, _byte_level(use_regex=False))


_DIGITS = {"type": "Digits", "individual_digits": True}
_SMOLLM = Cut((_DIGITS, _byte_level(use_regex=True)))
# The patterns of Llama 3 and of Qwen 2 differ in how many digits stay together.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = Cut(_split(_PATTERN % "{1,3}"), ignore_merges=True, adds_bos=True)

CUTS: dict[str, Cut] = {
    "gpt-2": Cut((_byte_level(use_regex=True),)),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": Cut(_split(_PATTERN % ""), composes=True),
    "refact": _SMOLLM,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
}
"""Those whose original steps are known; llama.cpp's own patterns are only made to resemble them."""
