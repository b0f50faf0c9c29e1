"""Read a contract file: YAML with line numbers, overrides, and every problem at once."""

from __future__ import annotations

import difflib
import re
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from trtkit.contract.models import Contract
from trtkit.contract.old_names import OLD_KEYS, UNWRITTEN, rename
from trtkit.contract.scalars import NAME_HINT
from trtkit.errors import ContractError, InputError, Problem, Severity

Key = tuple[str | int, ...]
_MOST_KEYS = 100_000
_SHOWN_CHARS = 120


class _Loader(yaml.SafeLoader):
    """Reads values by the core schema of YAML 1.2, and names the place of one that cannot be made.

    PyYAML's own is 1.1, where ``010`` is eight, ``1:30`` ninety, ``1_000`` a thousand, ``on`` true and ``1e9`` a text.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - as the base class has it

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Make the value of one node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            message = f"{_shown(node.value)} is no {kind} ({error}); quote it where text is meant"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark) from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}... ({len(text):,} characters)"


def _integer(_: _Loader, node: yaml.Node) -> int:
    return int(node.value, 0 if node.value.startswith(("0x", "0o")) else 10)


_CORE = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": "<<",
}
"""https://yaml.org/spec/1.2.2/#103-core-schema, and the merge keys of 1.1, which every reader knows."""
for _kind, _pattern in _CORE.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})$"), None)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


@dataclass(frozen=True)
class ContractFile:
    """A contract together with the place of each key, so that later stages can point at lines."""

    contract: Contract
    path: Path
    lines: Mapping[Key, int]
    overrides: tuple[str, ...] = ()
    """What was changed on the way, as ``a.b.c=value`` each."""
    pool: str = ""
    """The pool whose engine the contract is about; empty for the file as it is."""
    warnings: tuple[Problem, ...] = ()
    """Keys that stand under another name."""

    @property
    def changes(self) -> tuple[str, ...]:
        """What tells builds of one file apart."""
        return (*self.overrides, f"pool={self.pool}") if self.pool else self.overrides

    def of_pools(self, pool: str | None = None) -> dict[str, ContractFile]:
        """Return the contract of each pool's engine by name, or of one; ``""`` for a contract without pools.

        Raises:
            InputError: There is no such pool.
        """
        contract = self.contract
        if pool is not None and pool not in contract.pools:
            known = ", ".join(contract.pools) or "none: leave the option out"
            raise InputError(
                f"the contract has no pool {pool!r}", path=self.path, hint=f"its pools are {known}"
            )
        if not contract.pools:
            return {"": self}
        names = [pool] if pool is not None else list(contract.pools_by_length)
        return {name: replace(self, contract=contract.for_pool(name), pool=name) for name in names}

    def locate(self, problem: Problem) -> Problem:
        """Return the problem with file and line filled in from its dotted key."""
        key: Key = tuple(problem.key.split(".")) if problem.key else ()
        return replace(problem, file=str(self.path), line=_line_of(key, self.lines))


def load_contract(path: Path, overrides: Sequence[str] = ()) -> ContractFile:
    """Read, override and validate one contract.

    Args:
        path: YAML file.
        overrides: ``a.b.c=value`` each; the value is parsed as YAML, so types survive, but for keys that are text:
            ``engine.trtllm=1.10`` needs no quotes within quotes.

    Raises:
        InputError: The file cannot be read or an override is malformed.
        ContractError: The content is wrong; all problems are listed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            "there is no such contract", path=path, hint="name a YAML file with `kind: Contract`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text: {error}", path=path) from error
    return parse_contract(text, path, overrides)


def parse_contract(text: str, path: Path, overrides: Sequence[str] = ()) -> ContractFile:
    """Override and validate the text of a contract, which ``path`` stands for in messages.

    Raises:
        InputError: An override is malformed.
        ContractError: The content is wrong; all problems are listed.
    """
    raw, lines, problems = _parse(text, path)
    if problems:
        raise ContractError(problems)
    if not isinstance(raw, dict):
        raise ContractError([Problem("a contract is a mapping of keys to values", file=str(path), line=1)])
    for key, times in Counter(override.partition("=")[0] for override in overrides).items():
        if times > 1:
            raise InputError(f"--set {key} is given {times} times", hint="keep one of them")
    for override in overrides:
        _apply(raw, lines, override)
    warnings = []
    for old, new in rename(raw):
        line = lines.pop(old, None)
        lines |= {new: line} if line else {}
        hint = f"write {_dotted(new)}"
        warnings.append(Problem("another tool's name", _dotted(old), hint, str(path), line, Severity.WARNING))
    try:
        contract = Contract.model_validate(raw)
    except ValidationError as error:
        raise ContractError([_explain(item, path, lines) for item in error.errors()]) from None
    return ContractFile(contract, path, lines, tuple(overrides), warnings=tuple(warnings))


def _parse(text: str, path: Path) -> tuple[Any, dict[Key, int], list[Problem]]:
    """Return plain data, the line of every key, and what is wrong with the YAML itself."""
    try:
        keys = list(islice(_walk(yaml.compose(text, Loader=_Loader), ()), _MOST_KEYS + 1))
        if len(keys) > _MOST_KEYS:
            hint = "aliases of aliases grow without end: write out what is meant"
            return None, {}, [Problem(f"more than {_MOST_KEYS:,} keys", file=str(path), hint=hint)]
        data = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        problem = Problem("nested too deeply", file=str(path), hint="no value may contain itself by an alias")
        return None, {}, [problem]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        message = f"not valid YAML: {getattr(error, 'problem', None) or error}"
        return None, {}, [Problem(message, file=str(path), line=mark.line + 1 if mark else None)]
    lines: dict[Key, int] = {}
    problems = []
    for key, line in keys:
        if key in lines:
            hint = f"keep one of them; the first is on line {lines[key]}"
            problems.append(Problem("the key is given twice", _dotted(key), hint, str(path), line))
        lines[key] = line
    return _own(data), lines, problems


def plain_values(text: str) -> Any:
    """Return what is in a YAML text that could be read, each alias with values of its own."""
    return _own(yaml.load(text, _Loader))  # noqa: S506 - a SafeLoader


def _own(data: Any) -> Any:
    """Copy what several aliases share, so that changing one place leaves the others."""
    if isinstance(data, dict):
        return {key: _own(value) for key, value in data.items()}
    return [_own(each) for each in data] if isinstance(data, list) else data


def _walk(node: yaml.Node | None, prefix: Key) -> Iterator[tuple[Key, int]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            key = (*prefix, name.value)
            yield key, name.start_mark.line + 1
            yield from _walk(value, key)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            key = (*prefix, index)
            yield key, value.start_mark.line + 1
            yield from _walk(value, key)


def _apply(raw: dict[str, Any], lines: dict[Key, int], override: str) -> None:
    name, separator, value = override.partition("=")
    if not separator or not name:
        raise InputError(
            f"--set {override}: expected KEY=VALUE", hint="for instance --set engine.limits.max_batch_size=8"
        )
    if not value.strip():
        raise InputError(f"--set {override}: there is no value", hint=f"write {name}=null for none at all")
    *parents, leaf = name.split(".")
    section: Any = raw
    for parent in parents:
        section = section.setdefault(parent, {}) if isinstance(section, dict) else None
    if not isinstance(section, dict):
        raise InputError(f"--set {override}: {'.'.join(parents)} is not a section")
    section[leaf] = override_value(override)
    lines.pop((*parents, leaf), None)


def override_value(override: str) -> Any:
    """Return the value of ``a.b.c=value``.

    Raises:
        InputError: It is not valid YAML.
    """
    name, _, value = override.partition("=")
    try:
        given = yaml.load(value, _Loader)  # noqa: S506 - a SafeLoader
        if _is_text(tuple(name.split("."))) and not isinstance(given, str | list | dict | None):
            given = yaml.load(value, yaml.BaseLoader)  # noqa: S506 - which makes nothing but text
    except (yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "problem", None) or error
        raise InputError(f"--set {override}: the value is not valid YAML: {reason}") from error
    return given


def _explain(item: Any, path: Path, lines: Mapping[Key, int]) -> Problem:
    """Turn one pydantic error into what, allowed values and the nearest match."""
    key: Key = tuple(part for part in item["loc"] if part != "[key]")
    kind, given = item["type"], item.get("input")
    message, hint = f"{item['msg']}, got {_shown(given)}", ""
    if kind == "extra_forbidden":
        names = list(_fields_at(key[:-1]))
        old = OLD_KEYS.get(str(key[-1]))
        near = f"write {old}; " if old else _nearest(str(key[-1]), names)
        message, hint = "unknown key", f"{near}allowed here: {', '.join(names)}"
    elif kind == "missing":
        message, hint = "the key is required", _example_at(key)
    elif kind == "enum":
        allowed = item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        message, hint = (
            f"{given!r} is not one of {', '.join(allowed)}",
            UNWRITTEN.get(str(given).lower()) or _nearest(str(given), allowed).rstrip("; "),
        )
    elif kind == "string_pattern_mismatch" and key[-1] == "trtllm":
        line = re.search(r"\d+\.\d+", given)
        message, hint = (
            f"{given!r} is no release line",
            f'write "{line[0] if line else "1.2"}", its first two numbers',
        )
    elif kind == "string_pattern_mismatch":
        message, hint = f"{given!r} is no name", NAME_HINT
    elif key[:2] == ("engine", "targets"):
        hint = "name compute capabilities as whole numbers in a list, 8.9 as 89: [89, 120]"
    elif kind.startswith("value_error"):
        message = item["msg"].removeprefix("Value error, ")
    elif kind == "string_type" and isinstance(given, int | float):
        message, hint = f"expected text, got the number {given}", f'quote it: "{given}"'
    elif kind in ("float_type", "float_parsing") and str(key[-1]).endswith("_ms"):
        message, hint = (
            f"expected a number of milliseconds, got {given!r}",
            "the key carries the unit: write 500, not 500ms",
        )
    return Problem(message, _dotted(key), hint, str(path), _line_of(key, lines))


def _nearest(given: str, allowed: Iterable[str]) -> str:
    match = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.5)
    return f"did you mean `{match[0]}`? " if match else ""


def _dotted(key: Key) -> str:
    return ".".join(str(part) for part in key)


def _line_of(key: Key, lines: Mapping[Key, int]) -> int | None:
    """Return the line of the key, or of the nearest section around it."""
    while key and key not in lines:
        key = key[:-1]
    return lines.get(key)


def _annotation_at(key: Key) -> Any:
    """Return the type of what lives at a key of the contract, None being left out; None where there is no such key."""
    annotation: Any = Contract
    for part in key:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(part))
            annotation = field.annotation if field else None
        elif get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        else:
            return None
        if get_origin(annotation) in (Union, types.UnionType):
            annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
    return annotation


def _is_text(key: Key) -> bool:
    return _annotation_at(key) is str


def _model_at(key: Key) -> type[BaseModel] | None:
    """Return the contract section that lives at a key, or None for a plain value."""
    annotation = _annotation_at(key)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _fields_at(key: Key) -> Iterable[str]:
    model = _model_at(key)
    return model.model_fields if model else ()


def _example_at(key: Key) -> str:
    model = _model_at(key[:-1])
    examples = model.model_fields[str(key[-1])].examples if model else None
    if not examples:
        return ""
    written = yaml.safe_dump({key[-1]: examples[0]}, default_flow_style=True, sort_keys=False)
    return f"write for instance `{written.strip()[1:-1]}`"
