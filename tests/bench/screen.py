"""Where benchmarks print."""

from __future__ import annotations

import sys

from rich.console import Console

_WIDTH = 120
"""Columns in a log, where a table of figures must not be cut as on a terminal of 80."""

screen = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
