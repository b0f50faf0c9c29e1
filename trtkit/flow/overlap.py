"""Text that is read both to make a quantized model and to judge it: what it was made for, it does best.

Texts are compared by all runs of eight words, however they are cut into records: two writers rarely agree on so many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from trtkit.contract import ContractFile
from trtkit.errors import ContractError, Problem, Severity
from trtkit.quantize.calibrate import texts
from trtkit.quantize.calibrate.data import Data

_KEY = "quantization.gate.data"
_RUN = 8
_WORD = re.compile(r"[^\W_]+")
SOME, _ALL = 0.02, 0.9
"""Below the one, two texts share phrases; above the other, only seams of records differ."""


def overlap_warnings(file: ContractFile) -> Iterator[Problem]:
    """Yield a warning where the gate reads some of the texts of the calibration.

    Raises:
        ContractError: It reads nearly nothing else.
    """
    asked, base = file.contract.quantization, file.path.parent
    if asked.gate is None or not asked.takes_ranges or (asked.gate.data or asked.calibration.data) is None:
        return
    data = asked.calibration.data
    read = (each.text for each in Data(base / data if data else None, asked.calibration.column).records())
    held = (
        (each.text for each in Data(base / asked.gate.data).records())
        if asked.gate.data
        else [texts.held_out()]
    )
    # A word is a token or more.
    shared = shared_part(held, read, most_words=asked.gate.samples * asked.gate.sample_tokens)
    hint = "name text as quantization.gate.data that calibration.data does not hold"
    if shared >= _ALL:
        message = "the gate would read nothing but what is calibrated with, and it is to be held out"
        raise ContractError([file.locate(Problem(message, _KEY, hint))])
    if shared >= SOME:
        message = f"{shared:.0%} of the text of the gate is calibrated with, too"
        yield Problem(message, _KEY, hint, severity=Severity.WARNING)


def shared_part(held: Iterable[str], read: Iterable[str], *, most_words: int | None = None) -> float:
    """Return the part of the runs of words of ``held``, of which so many are looked at, that ``read`` has too."""
    wanted = set(_runs(islice(_words(held), most_words)))
    if not wanted:
        return 0.0
    missing = set(wanted)
    for run in _runs(_words(read)):
        missing.discard(run)
    return 1 - len(missing) / len(wanted)


def _words(parts: Iterable[str]) -> Iterator[str]:
    return (word.lower() for part in parts for word in _WORD.findall(part))


def _runs(words: Iterator[str]) -> Iterator[tuple[str, ...]]:
    """Yield all runs, of fewer words the only one."""
    run = tuple(islice(words, _RUN))
    if run:
        yield run
    for word in words:
        run = (*run[1:], word)
        yield run
