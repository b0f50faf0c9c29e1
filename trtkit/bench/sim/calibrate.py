"""An engine's constants from a file."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trtkit.bench.sim.engine import EngineModel
from trtkit.errors import InputError

_MOST = 1e12
_LEAST = {
    **dict.fromkeys(("max_num_tokens", "max_batch_size", "kv_tokens", "tokens_per_block"), 1),
    **dict.fromkeys(("step_s", "prefill_tokens_per_s"), 1e-9),
}
"""Of constants that may not be 0."""
_EXTRA = frozenset({"prefill_s", "square_s", "hidden_s", "cancel_s"})
"""What most engines are modelled without, and what the runtime itself sets."""
_HINT = (
    f"a JSON object with any of: {', '.join(field.name for field in fields(EngineModel))}; "
    "what trtkit bench --calibration has measured is for --calibration"
)


class Known(str, enum.Enum):
    """What an engine's constants are known from."""

    DECLARED = "declared"
    """Of an engine that stands for many, and was not measured."""
    GIVEN = "given"
    MEASURED = "measured"
    FORESEEN = "foreseen"
    """By the plan, before there is hardware."""


@dataclass(frozen=True)
class Modelled:
    """An engine's constants, and where they are from."""

    model: EngineModel
    known: Known
    source: str


REFERENCE = Modelled(
    EngineModel(), Known.DECLARED, "declared constants of an 8B model on one large GPU, not measured"
)


def read_engine(path: Path) -> Modelled:
    """Read an engine's constants.

    Raises:
        InputError: It holds something else, or an engine cannot be so.
    """
    try:
        text = path.read_text(encoding="utf-8")
        given: Any = json.loads(text) if text.strip() else None
        _check(given)
        return Modelled(EngineModel(**given), Known.GIVEN, _described(given, path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"no engine model: {error}", path=path, hint=_HINT) from error


def _described(given: dict[str, float], path: Path) -> str:
    rest = [each.name for each in fields(EngineModel) if each.name not in given and each.name not in _EXTRA]
    return f"constants of {path}" + (f"; declared, not given there: {', '.join(rest)}" if rest else "")


def _check(given: Any) -> None:
    if given is None:
        raise ValueError("the file is empty")
    if not isinstance(given, dict):
        raise TypeError("no object of constants")
    if wrong := sorted(_wrong(given)):
        raise ValueError(f"cannot be so: {', '.join(wrong)}")


def _wrong(given: dict[str, Any]) -> Iterator[str]:
    """Yield the constants that no engine has: not of their type, not finite, below what they can be."""
    for name, value in given.items():
        default = getattr(EngineModel, name, None)
        whole = isinstance(default, int)
        is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if default is None or not is_number or not (_LEAST.get(name, 0) <= value < _MOST):
            yield f"{name} {value!r}"
