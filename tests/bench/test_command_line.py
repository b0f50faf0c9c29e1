"""CPU time of what a person waits for before anything happens."""

import os
import subprocess
import sys

import pytest

HELP_CPU_S = 0.4


def cpu_s(*arguments):
    """Return user and system time of one run; other processes on the machine add nothing to it."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "trtkit", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize("arguments", [("--help",), ("convert", "--help")])
def test_help_comes_at_once(arguments):
    # The best of three: a cold cache and a busy neighbour's interrupts are not the program's.
    assert min(cpu_s(*arguments) for _ in range(3)) < HELP_CPU_S
