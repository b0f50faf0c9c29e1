"""Lists of layers that a tool left alone, as each of them writes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

Skips = Callable[[str], bool]
_REPEATS_REPEATS = re.compile(r"[*+}|][^()]*\)+[*+{]")
"""A repeated group that repeats or chooses inside: the time that it takes may double with every letter of a name."""


def by_name_or_regex(patterns: Any) -> Skips:
    """compressed-tensors: whole names, or ``re:`` and a regular expression that the name begins with.

    Raises:
        ValueError: It is no list of such.
    """
    names = _strings(patterns, "ignore")
    try:
        texts = [name.removeprefix("re:") for name in names if name.startswith("re:")]
        regexes = [re.compile(text) for text in texts]
    except re.error as error:
        raise ValueError(f"ignore holds a malformed regular expression: {error}") from error
    if slow := next(filter(_REPEATS_REPEATS.search, texts), None):
        raise ValueError(
            f"ignore repeats a repetition or a choice, which may take forever to match: {slow!r}"
        )
    return lambda module: module in names or any(regex.match(module) for regex in regexes)


def by_wildcard(patterns: Any) -> Skips:
    """ModelOpt: shell patterns, of the layer or of a module that it is in.

    Raises:
        ValueError: It is no list of such.
    """
    names = _strings(patterns, "exclude_modules")
    return lambda module: any(fnmatchcase(part, name) for part in _upwards(module) for name in names)


def by_component(patterns: Any) -> Skips:
    """Transformers: names of modules, whole or some components in a row.

    Raises:
        ValueError: It is no list of such.
    """
    names = _strings(patterns, "modules_to_not_convert")
    return lambda module: any(f".{name}." in f".{module}." for name in names)


def _strings(patterns: Any, key: str) -> Sequence[str]:
    names = [] if patterns is None else patterns
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} is {patterns!r}, not a list of names")
    return names


def _upwards(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]
