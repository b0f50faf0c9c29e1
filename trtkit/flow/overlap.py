"""Text that is read both to make a quantized model and to judge it: what it was made for, it does best."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.canonical import content_key
from trtkit.contract import ContractFile
from trtkit.errors import ContractError, Problem, Severity
from trtkit.quantize.calibrate import texts
from trtkit.quantize.calibrate.data import Data, Record

_KEY = "quantization.gate.data"


def overlap_warnings(file: ContractFile) -> Iterator[Problem]:
    """Yield a warning where the gate reads some of the texts of the calibration.

    Raises:
        ContractError: It reads nothing else.
    """
    asked, base = file.contract.quantization, file.path.parent
    if asked.gate is None or not asked.takes_ranges or (asked.gate.data or asked.calibration.data) is None:
        return
    data = asked.calibration.data
    read = _digests(Data(base / data if data else None, asked.calibration.column).records())
    held = (
        _digests(Data(base / asked.gate.data).records()) if asked.gate.data else {_digest(texts.held_out())}
    )
    shared = len(held & read)
    hint = "name text as quantization.gate.data that calibration.data does not hold"
    if shared == len(held) and shared:
        message = "the gate would read nothing but what is calibrated with, and it is to be held out"
        raise ContractError([file.locate(Problem(message, _KEY, hint))])
    if shared:
        message = f"{shared} of {len(held)} texts of the gate are calibrated with, too"
        yield Problem(message, _KEY, hint, severity=Severity.WARNING)


def _digests(records: Iterator[Record]) -> set[str]:
    return {_digest(record.text) for record in records if record.text.strip()}


def _digest(text: str) -> str:
    return content_key({"": text.strip()})
