"""``trtkit cache``: what builds left in the store, and what of it may go."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.cli.console import Output, fail, many, say, show, show_json
from trtkit.cli.options import OutputOption
from trtkit.errors import EnvironmentLacks, InputError

if TYPE_CHECKING:
    from trtkit.engine.contents import Entry

app = typer.Typer(no_args_is_help=True, help="List, find and remove what builds left in the store.")
_SIZES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}
_SHOWN = 5
"""Names of foreign files that a person is told."""
_AGES_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@app.command("ls")
def ls(output: OutputOption = Output.TEXT) -> None:
    """List products with size, age, last use and the contracts that use them."""
    from trtkit.engine.contents import bytes_on_disk, list_entries, list_foreign

    root, now_s = _root(), time.time()
    entries, foreign = list_entries(root), list_foreign(root)
    total = bytes_on_disk(entries)
    if output is Output.JSON:
        show_json(
            {
                "schema": 1,
                "root": root,
                "bytes": total,
                "entries": [_document(each, now_s) for each in entries],
                "foreign": foreign,
            }
        )
        return
    if entries:
        show(f"{'stage':<13}{'key':<34}{'size':>11}{'made':>7}{'used':>7}  {'state':<12}contracts")
    for each in entries:
        state = "in use" if each.in_use else each.state.value
        ages = f"{_age(now_s - each.made_s):>7}{_age(now_s - each.used_s):>7}"
        size = f"{each.bytes / 1e6:,.1f} MB"
        show(
            f"{each.stage:<13}{each.key[:32]:<34}{size:>11}{ages}  {state:<12}{', '.join(each.contracts) or '-'}"
        )
    show(f"{root}: {many(len(entries), 'folder')}, {total / 1e6:,.1f} MB on disk")
    _tell_foreign(root, foreign)


@app.command("path")
def path(
    key: Annotated[
        str | None,
        typer.Argument(help="Beginning of a product's key, as `ls` shows it; left out, the store itself."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print where the store, or one product, is."""
    from trtkit.engine.contents import list_entries
    from trtkit.engine.store import HOME_VARIABLE

    root = _root()
    if key == "":
        raise InputError("the key is empty", hint="leave it out for the store itself, which has all products")
    found = [each.path for each in list_entries(root) if each.key.startswith(key)] if key else [root]
    if len(found) != 1:
        hint = f"`trtkit cache ls` lists them; {HOME_VARIABLE} chooses the store"
        raise InputError(
            f"{many(len(found), 'product')} with a key that begins with {key}", path=root, hint=hint
        )
    if output is Output.JSON:
        show_json({"schema": 1, "path": found[0]})
    else:
        show(str(found[0]))


@app.command("gc")
def gc(
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="AGE", help="Remove what was not used for longer: 12h, 30d."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size", metavar="SIZE", help="Remove what was used least lately until the rest fits: 50GB."
        ),
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="Remove what no contract uses.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove damaged and unfinished products, and what the options name; never what is in use."""
    from trtkit.engine.contents import Limits, bytes_on_disk, choose, list_entries, list_foreign

    limits = Limits(
        max_age_s=_parse("--max-age", max_age, _AGES_S) if max_age is not None else None,
        max_bytes=int(_parse("--max-size", max_size, _SIZES)) if max_size is not None else None,
        unused=unused,
    )
    root, now_s = _root(), time.time()
    entries = list_entries(root)
    chosen = choose(entries, limits, now_s=now_s)
    gone, stuck = (chosen, []) if dry_run else _remove(chosen)
    kept = [each for each in entries if each not in gone]
    freed = bytes_on_disk(entries) - bytes_on_disk(kept)
    removed = [_document(each, now_s) for each in gone]
    document = {"schema": 1, "root": root, "dry_run": dry_run, "bytes": freed, "removed": removed}
    if output is Output.TEXT:
        for each in gone:
            show(f"{each.stage:<13}{each.key[:32]:<34}{each.bytes / 1e6:>8,.1f} MB  {each.path}")
        in_use = sum(each.in_use for each in entries)
        what = "would go" if dry_run else "removed"
        show(f"{root}: {many(len(gone), 'folder')} {what}, {freed / 1e6:,.1f} MB freed, {in_use} in use")
        _tell_foreign(root, list_foreign(root))
    if stuck:
        message = f"{many(len(stuck), 'folder')} cannot be removed: {stuck[0].strerror}"
        hint = "make the store writable, or run it as the user whose it is"
        fail(EnvironmentLacks(message, path=stuck[0].filename or root, hint=hint), document)
    if output is Output.JSON:
        show_json(document)


def _root() -> Path:
    """Return the store's folder, which need not be there."""
    from trtkit.engine.store import HOME_VARIABLE, default_root

    root = default_root()
    if root.exists() and not root.is_dir():
        raise EnvironmentLacks("the store is no folder", path=root, hint=f"set {HOME_VARIABLE} to one")
    return root


def _remove(chosen: Iterable[Entry]) -> tuple[list[Entry], list[OSError]]:
    """Return what went, and why the rest did not; what somebody has begun to use stays without a word."""
    results = {each.path: (each, _try_removing(each)) for each in chosen}
    errors = [result for _, result in results.values() if isinstance(result, OSError)]
    return [each for each, result in results.values() if result is True], errors


def _try_removing(entry: Entry) -> bool | OSError:
    from trtkit.engine.contents import remove

    try:
        return remove(entry)
    except OSError as error:
        return error


def _tell_foreign(root: Path, foreign: Sequence[Path]) -> None:
    """Say what is never removed, and why."""
    from trtkit.engine.store import MARKER

    if not foreign:
        return
    names = [str(each.relative_to(root)) for each in foreign[:_SHOWN]]
    more = [f"and {len(foreign) - _SHOWN} more"] if len(foreign) > _SHOWN else []
    why = "" if (root / MARKER).is_file() else f" (there is no {MARKER}, which the next build writes)"
    say(f"not trtkit's, and never removed{why}: {', '.join([*names, *more])}")


def _document(entry: Entry, now_s: float) -> dict[str, Any]:
    return {
        "stage": entry.stage,
        "key": entry.key,
        "path": entry.path,
        "state": entry.state.value,
        "in_use": entry.in_use,
        "bytes": entry.bytes,
        "age_s": round(now_s - entry.made_s),
        "unused_s": round(now_s - entry.used_s),
        "contracts": entry.contracts,
    }


def _parse(option: str, text: str, units: dict[str, int]) -> float:
    """Return a number with its unit, in the unit of 1."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    unit = match[2] if match and match[2] in units else match[2].upper() if match else ""
    if match is None or unit not in units:
        hint = f"a number and one of {', '.join(filter(None, units))}"
        raise InputError(f"{option} {text!r}: not understood", hint=hint)
    return float(match[1]) * units[unit]


def _age(seconds: float) -> str:
    for unit, size_s in reversed(_AGES_S.items()):
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return "now"
