"""What verbs call their options, in the words of the contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from trtkit.errors import ContractError, TrtkitError


@contextmanager
def contract_words(words: Mapping[str, str]) -> Iterator[None]:
    """Replace options by keys in the hints of what is raised in the block."""
    try:
        yield
    except ContractError as error:
        raise ContractError(
            [replace(each, hint=in_words(each.hint, words)) for each in error.problems]
        ) from None
    except TrtkitError as error:
        error.hint = in_words(error.hint, words)
        raise


def in_words(hint: str, words: Mapping[str, str]) -> str:
    """Return a hint with keys for options."""
    for option, key in words.items():
        hint = hint.replace(option, key)
    return hint
