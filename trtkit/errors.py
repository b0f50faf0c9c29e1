"""The error tree. Every error says what, where, why and how to fix it.

::

    TrtkitError                 exit 1   a bug: nothing else should reach the user unclassified
    ├── InputError              exit 2   the contract, a checkpoint or an argument is wrong
    │   └── ContractError       exit 2   all problems of one contract at once
    ├── StartError              exit 3   a server could not start (port in use, never became ready)
    ├── EnvironmentLacks        exit 4   the machine lacks something (an extra, a library, a GPU)
    ├── StageError              exit 5   a build stage failed
    ├── VerificationError       exit 6   a gate or a verification said no
    └── DriftError              exit 7   a check found that a generated file would change
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Severity(str, enum.Enum):
    """How much a :class:`Problem` weighs: errors stop, warnings are shown."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input, with its place and its fix.

    ``key`` is the dotted path inside the file (``engine.limits.max_batch_size``), ``line`` counts from 1.
    """

    message: str
    key: str = ""
    hint: str = ""
    file: str = ""
    line: int | None = None
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """Render as ``file:line: key: message (hint)``."""
        place = self.file + (f":{self.line}" if self.line is not None else "")
        parts = [part for part in (place, self.key) if part]
        text = ": ".join([*parts, self.message])
        return f"{text}\n    fix: {self.hint}" if self.hint else text


class TrtkitError(Exception):
    """Base of every error that trtkit raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", path: Path | str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = str(path) if path is not None else ""

    def __str__(self) -> str:
        """Render as ``path: message`` and the fix on its own line."""
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text}\n    fix: {self.hint}" if self.hint else text


class InputError(TrtkitError):
    """Something that the user gave is wrong: a contract, a checkpoint, an argument."""

    exit_code = 2


class ContractError(InputError):
    """A contract (or its plan) has problems; all of them are listed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class StartError(TrtkitError):
    """A server could not be started."""

    exit_code = 3


class EnvironmentLacks(TrtkitError):  # noqa: N818 - reads as the sentence it is
    """The machine lacks something that the command needs."""

    exit_code = 4


class StageError(TrtkitError):
    """A build stage failed."""

    exit_code = 5


class VerificationError(TrtkitError):
    """A quality gate or a verification failed; ``details`` are its figures, for who reads JSON."""

    exit_code = 6

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        path: Path | str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, path=path)
        self.details = dict(details or {})


class DriftError(TrtkitError):
    """A generated file differs from what would be generated now."""

    exit_code = 7
