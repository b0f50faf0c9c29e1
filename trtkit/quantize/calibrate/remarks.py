"""What a calibration should make one think about: fewer samples than were asked for, layers that saw nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtkit.errors import Problem, Severity

_NAMED = 3
_FEW_TOKENS = 512
"""As many as the shortest calibration of the literature reads in one of its 128 samples."""


def sample_remarks(asked: int, used: int, skipped: int, tokens: int) -> Iterator[Problem]:
    """Yield what is odd about what is read."""
    hint = "give more texts with --data, or lower --samples"
    if used < asked:
        message = f"{_many(used, 'sample')} of {asked} that were asked for: there is no more text"
        yield Problem(message, key="samples", hint=hint, severity=Severity.WARNING)
    if tokens < _FEW_TOKENS:
        message = f"{_many(tokens, 'token')} in all say little of a model's ranges"
        yield Problem(message, key="samples", hint="give more texts with --data", severity=Severity.WARNING)
    if skipped:
        message = f"{_many(skipped, 'text')} without a token skipped"
        yield Problem(message, key="data", severity=Severity.WARNING)


def layer_remarks(unreached: Sequence[str], silent: Sequence[str]) -> Iterator[Problem]:
    """Yield what is odd about single layers."""
    if unreached:
        message = (
            f"no token came to {_some(unreached)}, which got the largest ranges of the layer's other experts"
        )
        hint = "give more samples if that is too many"
        yield Problem(message, key="unreached", hint=hint, severity=Severity.WARNING)
    if silent:
        message = f"nothing but zeros goes into {_some(silent)}: what is before them has been pruned away"
        hint = "formats with ranges refuse such layers; int8-wo and fp8-rowwise take them"
        yield Problem(message, key="samples", hint=hint, severity=Severity.WARNING)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return f"{_many(len(names), 'linear layer')} ({shown})"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
