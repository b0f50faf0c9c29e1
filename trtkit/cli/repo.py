"""``trtkit repo``: the Triton model repository of a contract, without its engine; and whether one is sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkit.cli.console import Output, fail, many, progress, read_contract, say, show, show_json, warn
from trtkit.cli.options import OutputOption, PoolOption, SetOption
from trtkit.errors import DriftError, InputError, Problem, Severity, VerificationError

if TYPE_CHECKING:
    from trtkit.flow.repository import Rendered
    from trtkit.triton.folder import Drift

_DIFF_LINES = 40
_NO_POOL = "the contract has no such pool"
_SPARE = "stop what serves it, and remove the folder"


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
    pool: PoolOption = None,
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
    from trtkit.engine.store import Store
    from trtkit.flow.repository import left_over, place_of, render_pools

    if not contract.exists():
        raise InputError("there is no such contract or folder", path=contract)
    if contract.is_dir():
        given = {"-o": out, "--set": overrides, "--engine": engine, "--mount": mount, "--pool": pool}
        _check_folder(contract, line, [name for name, value in given.items() if value], output, check=check)
        return
    if out is None:
        raise InputError("no folder for the repository", hint="give one with -o")
    if line is not None:
        raise InputError("the contract says for which line", hint="--set engine.trtllm=X.Y instead of --line")
    file = read_contract(contract, overrides)
    with progress() as report:
        found = render_pools(file, Store(), report, mount=mount, pool=pool)
    if engine is not None and len(found) > 1:
        raise InputError("each pool has an engine of its own", hint="give --pool with --engine")
    pairs = [(rendered, place_of(out, name, pool)) for name, rendered in found.items()]
    spare = left_over(out, [place for _, place in pairs]) if pool is None else []
    _write(pairs, out, engine, output, check=check, overwrite=overwrite, spare=spare)


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


def _write(
    found: Sequence[tuple[Rendered, Path]],
    out: Path,
    engine: Path | None,
    output: Output,
    *,
    check: bool,
    overwrite: bool,
    spare: Sequence[Path],
) -> None:
    """Write or check one repository, or that of each pool; nothing is written before all were looked at."""
    from trtkit.flow.repository import changed_engines, record_pools

    warn(dict.fromkeys(each for rendered, _ in found for each in rendered.plan.warnings))
    looked = [(rendered, place, rendered.drifts(place)) for rendered, place in found]
    states = {
        str((place / each.path).relative_to(out)): each.state.value
        for _, place, drift in looked
        for each in drift
    }
    states |= {str(each.relative_to(out)): _NO_POOL for each in spare} if check else {}
    files = sorted(str((place / name).relative_to(out)) for each, place in found for name in each.files)
    result: dict[str, Any] = {
        "schema": 1,
        "repository": out,
        "files": files,
        "changed": sorted(states),
        "states": states,
    }
    for rendered, place in found:
        _report(rendered.engine_problems(place), place, result)
    if check and states:
        _show_drift(looked, spare, out, result)
    # A server may still run on them, so they stay.
    warn(Problem(_NO_POOL, file=str(each), hint=_SPARE, severity=Severity.WARNING) for each in spare)
    for rendered, place, _ in looked:
        if not check:
            rendered.write(place, overwrite=overwrite)
            if engine is not None:
                rendered.link(place, engine)
        changed = changed_engines(place) if check else []
        _report([*changed, *rendered.problems(place)], place, result)
    if not check:
        record_pools(out, [place for _, place in found])
    if output is Output.JSON:
        show_json(result)
        return
    for rendered, place, drift in looked:
        state = "as they should be" if check else f"{len(drift)} changed"
        show(f"{place}: {many(len(rendered.files), 'file')}, {state}")


def _report(found: Sequence[Problem], folder: Path, result: Mapping[str, Any]) -> None:
    """Tell warnings, and end the verb on errors."""
    warn(each for each in found if each.severity is Severity.WARNING)
    if wrong := [each for each in found if each.severity is Severity.ERROR]:
        for each in wrong:
            say(str(each))
        error = VerificationError(many(len(wrong), "problem"), path=folder, hint=wrong[0].hint)
        fail(error, {**result, "problems": [vars(each) for each in wrong]})


def _show_drift(
    looked: Sequence[tuple[Rendered, Path, Sequence[Drift]]],
    spare: Sequence[Path],
    out: Path,
    result: Mapping[str, Any],
) -> None:
    count = 0
    for _, place, drift in looked:
        for each in drift:
            count += 1
            say(f"{place / each.path}: {each.state.value}")
            lines = each.diff.splitlines()
            for line in lines[:_DIFF_LINES]:
                say(f"    {line}")
            if len(lines) > _DIFF_LINES:
                say(f"    ... {many(len(lines) - _DIFF_LINES, 'line')} more")
    for folder in spare:
        say(f"{folder}: {_NO_POOL}")
    told = [f"{many(count, 'file')} not as it would be written"] if count else []
    hints = [f"run: trtkit repo {looked[0][0].file.path} -o {out}"] if count else []
    if spare:
        told.append(f"{', '.join(folder.name for folder in spare)}: {_NO_POOL}")
        hints.append(_SPARE)
    fail(DriftError("; ".join(told), path=out, hint="; ".join(hints)), result)
