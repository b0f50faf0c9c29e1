"""``trtkit repo``: the Triton model repository of a contract, without its engine; and whether one is sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.cli.console import Output, fail, many, progress, say, show, show_json, warn
from trtkit.cli.options import OutputOption, SetOption
from trtkit.errors import DriftError, InputError, Problem, Severity, VerificationError

if TYPE_CHECKING:
    from trtkit.triton.folder import Drift

_DIFF_LINES = 40


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("repo")(repo)


def repo(
    contract: Annotated[
        Path,
        typer.Argument(
            metavar="CONTRACT", help="Contract file (YAML); with --check also any repository's folder."
        ),
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder of the repository.")] = None,
    overrides: SetOption = [],  # noqa: B006
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Change nothing; exit 7 when a file would change, 6 when Triton would not take it.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also replace files that were edited since trtkit wrote them.")
    ] = False,
    engine: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Engine to link in, with the source's tokenizer.")
    ] = None,
    mount: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Where containers see the repository.", show_default="/model_repo"),
    ] = None,
    line: Annotated[
        str | None,
        typer.Option(
            metavar="X.Y", help="Of a repository without contract: TensorRT-LLM's line that serves it."
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write configurations and Python models, unless an engine of another contract lies there.

    Files that trtkit did not write are left alone.
    """
    if contract.is_dir():
        given = {"-o": out, "--set": overrides, "--engine": engine, "--mount": mount}
        _check_folder(contract, line, [name for name, value in given.items() if value], output, check=check)
        return
    if out is None:
        raise InputError("no folder for the repository", hint="give one with -o")
    if line is not None:
        raise InputError("the contract says for which line", hint="--set engine.trtllm=X.Y instead of --line")
    _contract(contract, out, overrides, engine, mount, output, check=check, overwrite=overwrite)


def _check_folder(
    folder: Path, line: str | None, foreign: Sequence[str], output: Output, *, check: bool
) -> None:
    """Judge a repository by itself."""
    from trtkit.flow.repository import foreign_problems

    if not check or foreign:
        what = "is a folder" if not check else f"is a folder, for which {', '.join(foreign)} have no use"
        raise InputError(
            what, path=folder, hint="give a contract, or only --check (and --line) for a repository"
        )
    found = foreign_problems(folder, line)
    result = {"schema": 1, "repository": folder, "problems": [vars(each) for each in found]}
    _report(found, folder, result)
    if output is Output.JSON:
        show_json(result)
    else:
        show(f"{folder}: Triton has no reason to refuse it")


def _contract(
    contract: Path,
    out: Path,
    overrides: list[str],
    engine: Path | None,
    mount: str | None,
    output: Output,
    *,
    check: bool,
    overwrite: bool,
) -> None:
    from trtkit.contract import load_contract
    from trtkit.engine.store import Store
    from trtkit.flow.repository import render_contract
    from trtkit.triton import folder

    with progress() as report:
        rendered = render_contract(load_contract(contract, overrides), Store(), report, mount=mount)
    warn(rendered.plan.warnings)
    drift = folder.drifts(rendered.files, out)
    result: dict[str, Any] = {
        "schema": 1,
        "repository": out,
        "files": sorted(rendered.files),
        "changed": [each.path for each in drift],
        "states": {each.path: each.state.value for each in drift},
    }
    _report(rendered.engine_problems(out), out, result)
    if check and drift:
        _show_drift(drift, contract, out, result)
    if not check:
        folder.write(rendered.files, out, overwrite=overwrite)
        if engine is not None:
            rendered.link(out, engine)
    _report(rendered.problems(out), out, result)
    if output is Output.JSON:
        show_json(result)
    else:
        state = "as they should be" if check else f"{len(drift)} changed"
        show(f"{out}: {many(len(rendered.files), 'file')}, {state}")


def _report(found: Sequence[Problem], folder: Path, result: Mapping[str, Any]) -> None:
    """Tell warnings, and end the verb on errors."""
    warn(each for each in found if each.severity is Severity.WARNING)
    if wrong := [each for each in found if each.severity is Severity.ERROR]:
        for each in wrong:
            say(str(each))
        error = VerificationError(many(len(wrong), "problem"), path=folder, hint=wrong[0].hint)
        fail(error, {**result, "problems": [vars(each) for each in wrong]})


def _show_drift(drift: Sequence[Drift], contract: Path, out: Path, result: Mapping[str, Any]) -> None:
    for each in drift:
        say(f"{out / each.path}: {each.state.value}")
        lines = each.diff.splitlines()
        for line in lines[:_DIFF_LINES]:
            say(f"    {line}")
        if len(lines) > _DIFF_LINES:
            say(f"    ... {many(len(lines) - _DIFF_LINES, 'line')} more")
    hint = f"run: trtkit repo {contract} -o {out}"
    message = f"{many(len(drift), 'file')} not as it would be written"
    fail(DriftError(message, path=out, hint=hint), result)
