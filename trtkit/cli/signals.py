"""Signals that end a command as Ctrl-C does: nothing half written stays."""

from __future__ import annotations

import signal
import threading


def end_on_signals() -> None:
    """Unwind on SIGTERM and SIGHUP, and exit with 143 and 129; what is ignored (nohup) or handled stays so."""
    if threading.current_thread() is not threading.main_thread():
        return  # a host that runs a command in a thread keeps its own handlers
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    # A second one shall not end the cleaning up.
    signal.signal(number, lambda *_: None)
    raise SystemExit(128 + number)
