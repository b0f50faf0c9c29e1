"""Text that is read both to make a quantized model and to judge it: what it was made for, it does best."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import read_json
from trtkit.contract import ContractFile
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.errors import ContractError, InputError, Problem, Severity
from trtkit.quantize.calibrate import texts
from trtkit.quantize.calibrate.data import Data
from trtkit.quantize.fingerprint import ALL, FINGERPRINT, SOME, Fingerprint, shared_part
from trtkit.quantize.gate.samples import Samples

_KEY = "quantization.gate.data"
_HINT = "name text as quantization.gate.data that calibration.data does not hold"


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
    if shared >= ALL:
        message = "the gate would read nothing but what is calibrated with, and it is to be held out"
        raise ContractError([file.locate(Problem(message, _KEY, _HINT))])
    if shared >= SOME:
        message = f"{shared:.0%} of the text of the gate is calibrated with, too"
        yield Problem(message, _KEY, _HINT, severity=Severity.WARNING)


def calibrated_part(candidate: Path, tokenizer: Any, samples: Samples) -> float:
    """Return the part of a gate's text that a checkpoint or engine says it was calibrated with.

    Raises:
        InputError: It is nearly all of it, or what is said cannot be read.
    """
    path = candidate / CHECKPOINT_CONFIG
    config = read_json(path)
    # An engine has the configuration of its checkpoint.
    built = config.get("pretrained_config") or config
    own = built.get("trtkit") if isinstance(built, dict) else None
    if not isinstance(own, dict) or FINGERPRINT not in own:
        return 0.0
    try:
        read = Fingerprint.parse(own[FINGERPRINT])
    except (TypeError, ValueError) as error:
        hint = "convert the model again"
        raise InputError(f"trtkit.{FINGERPRINT}: {error}", path=path, hint=hint) from error
    shared = read.part_of(tokenizer.decode(each.tolist()) for each in samples.sequences)
    if shared >= ALL:
        message = "the gate would read nothing but what the candidate is calibrated with"
        hint = "give it text with --data that nothing was calibrated with"
        raise InputError(message, path=samples.origin, hint=hint)
    return shared
