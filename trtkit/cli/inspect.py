"""``trtkit inspect``: what a folder or file is, from its headers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.cli.console import Output, fail, many, say, show, show_json, warn
from trtkit.cli.options import OutputOption, parse_path
from trtkit.errors import Severity, VerificationError

if TYPE_CHECKING:
    from trtkit.flow.inspect import Finding


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("inspect")(inspect)


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            parser=parse_path,
            metavar="PATH",
            help="Checkpoint (TensorRT-LLM or Hugging Face), engine, model repository or .gguf file.",
        ),
    ],
    output: OutputOption = Output.TEXT,
) -> None:
    """Say what a folder is, whoever made it; reads headers only. Exit 6 when a part is damaged."""
    from trtkit.flow.inspect import inspect as look

    found = look(path)
    document = {"schema": 1, **_document(found)}
    if output is Output.TEXT:
        show("\n".join(_lines(found)))
    warn(each for each in found.all_problems if each.severity is Severity.WARNING)
    if problems := [each for each in found.all_problems if each.severity is Severity.ERROR]:
        for problem in problems:
            say(str(problem))
        fail(VerificationError(f"{many(len(problems), 'part')} damaged", path=path), document)
    if output is Output.JSON:
        show_json(document)


def _document(found: Finding) -> dict[str, Any]:
    """Return a finding with what is computed from it."""
    parts = [_document(part) for part in found.parts]
    return {
        **asdict(found),
        "kind": found.kind.value,
        "bytes": found.bytes,
        "tensors": found.tensors,
        "parts": parts,
    }


def _lines(found: Finding, indent: str = "") -> list[str]:
    rows = [(name, value) for name, value in _rows(found) if value not in {None, ""}]
    lines = [f"{indent}{found.path}: {found.kind.value}"]
    lines += [f"{indent}  {name:<20}{value}" for name, value in rows]
    for note in found.notes:
        lines.append(f"{indent}  note: {note}")
    for part in found.parts:
        lines += ["", *_lines(part, indent + "  ")]
    return lines


def _rows(found: Finding) -> list[tuple[str, str | None]]:
    files = f"{_size(found.bytes)} in {many(len(found.files), 'file')}" if found.files else None
    kv = found.kv_bytes_per_token
    return [
        ("made by", found.made_by),
        ("architecture", found.architecture),
        ("parameters", f"{found.parameters:,}" if found.parameters else None),
        ("weights", found.weights),
        ("KV cache", found.kv_cache),
        ("other tensors", found.dtype),
        ("ranks", str(found.ranks) if found.ranks and found.ranks > 1 else None),
        (
            "KV per token",
            f"{kv:,} bytes" + (" on each rank" if (found.ranks or 1) > 1 else "") if kv else None,
        ),
        ("size", files),
        *(
            (dtype, _amount(found, dtype))
            for dtype in sorted(found.dtypes, key=lambda name: -found.dtypes[name].bytes)
        ),
        *((name, _detail(value)) for name, value in found.details.items()),
    ]


def _amount(found: Finding, dtype: str) -> str:
    amount = found.dtypes[dtype]
    return f"{many(amount.tensors, 'tensor')}, {amount.elements:,} elements, {_size(amount.bytes)}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def _detail(value: Any) -> str | None:
    if isinstance(value, dict):
        # A model of a repository has a page of tensors; the document has them.
        return ", ".join(
            f"{name} {_detail(each)}" for name, each in value.items() if not isinstance(each, list | dict)
        ) or ", ".join(value)
    return None if value is None else str(value)
