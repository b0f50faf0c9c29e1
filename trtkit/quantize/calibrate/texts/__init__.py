"""Texts that come with trtkit: Python's documentation topics, in two parts that do not overlap; see NOTICE.txt."""

from __future__ import annotations

import lzma
from importlib import resources

CALIBRATION = "Python 3.11.7 documentation topics (built in)"


def calibration() -> str:
    """Return the text that models are calibrated with where no other is given."""
    return _read("calibration")


def held_out() -> str:
    """Return the text that no built-in calibration has seen, for judging what came of it."""
    return _read("held_out")


def _read(name: str) -> str:
    packed = resources.files(__name__).joinpath(f"{name}.txt.xz").read_bytes()
    return lzma.decompress(packed).decode()
