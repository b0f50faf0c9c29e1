"""CPU time of what a person waits for before anything happens."""

import os
import subprocess
import sys

HELP_CPU_S = 0.4
BUSY_RATIO = 2
"""Neighbours on the same cores make everything slower: then by the time that typer and rich alone take."""


def cpu_s(*arguments):
    """Return user and system time of one run of Python."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_comes_at_once():
    runs = [
        (cpu_s("-m", "trtkit", "--help"), cpu_s("-c", "import typer, typer.rich_utils, asyncio"))
        for _ in range(3)
    ]
    helped_s, alone_s = map(min, zip(*runs, strict=True))
    assert helped_s < max(HELP_CPU_S, BUSY_RATIO * alone_s)
