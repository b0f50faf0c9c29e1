"""A model repository outside of the store: rendered from a contract, or somebody's, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.catalog.trtllm import LINES
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.contract import ContractFile
from trtkit.conventions import MANIFEST
from trtkit.engine.store import Store
from trtkit.errors import InputError, Problem, Severity
from trtkit.flow.against import engine_problems
from trtkit.flow.build import Report, resolve_draft
from trtkit.flow.chosen import resolve_chosen
from trtkit.flow.stages import need_tokenizer
from trtkit.flow.verify import OTHER_VERSION, changed_files
from trtkit.plan import Plan

if TYPE_CHECKING:
    from trtkit.triton.folder import Drift

_POOLS = ".trtkit-pools"
"""Beside the repositories of pools: their names, a line for each."""


@dataclass(frozen=True)
class Rendered:
    """The files of one repository, and what they were rendered from."""

    file: ContractFile
    source: HfCheckpoint
    plan: Plan
    draft: Plan | None
    files: Mapping[str, bytes]

    @property
    def line(self) -> str | None:
        """Release line of TensorRT-LLM that serves it; None for engines of trtkit's own."""
        return self.plan.target.trtllm if self.plan.target else None

    def engine_problems(self, out: Path) -> list[Problem]:
        """Return why engines that lie in ``out`` are not those of the plan."""
        return engine_problems(out, self.plan, self.file.path, self.file.overrides)

    def problems(self, out: Path) -> list[Problem]:
        """Return why Triton would not take the repository in ``out``."""
        from trtkit.triton.lint import lint

        linked = all(any(out.glob(f"*/*/{part}")) for part in ("engine", "tokenizer"))
        return [*self.engine_problems(out), *lint(out, self.line, linked=linked)]

    def drifts(self, out: Path) -> list[Drift]:
        """Return which files would change in ``out``, and why."""
        from trtkit.triton.folder import drifts

        return drifts(self.files, out)

    def write(self, out: Path, *, overwrite: bool = False) -> None:
        """Write the files. Raises InputError for files that are not trtkit's, or were edited."""
        from trtkit.triton.folder import write

        if write(self.files, out, overwrite=overwrite):
            # What a build delivered here is no more; its engines have manifests of their own.
            (out / MANIFEST).unlink(missing_ok=True)

    def link(self, out: Path, engine: Path) -> None:
        """Place an engine and the source's tokenizer.

        Raises:
            InputError: There is no engine or no tokenizer, or the contract has a draft model, whose engine lacks.
        """
        from trtkit.triton.parts import install

        if self.draft is not None:
            hint = "let `trtkit build` make the repository: it links both engines"
            raise InputError("the contract has a draft model: one engine is not enough", hint=hint)
        install(out, engine, need_tokenizer(self.source).parent)


def place_of(out: Path, name: str, pool: str | None) -> Path:
    """Return where the repository of a pool lies: below the folder by its name, or there if only one is asked for."""
    return out if name == pool else out / name


def left_over(out: Path, places: Collection[Path]) -> list[Path]:
    """Return the repositories that were written below a folder for pools which the contract has no more."""
    from trtkit.triton.folder import RECORD

    named = (out / name for name in _pools_of(out))
    return sorted(each for each in named if each not in places and (each / RECORD).is_file())


def record_pools(out: Path, places: Collection[Path]) -> None:
    """Note which pools have their repositories below a folder, those that are left over among them."""
    names = {place.name for place in (*places, *left_over(out, places)) if place.parent == out}
    if names:
        (out / _POOLS).write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")


def _pools_of(out: Path) -> list[str]:
    try:
        names = (out / _POOLS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [name for name in names if Path(name).name == name]


def render_pools(
    file: ContractFile, store: Store, report: Report, *, mount: str | None = None, pool: str | None = None
) -> dict[str, Rendered]:
    """Render the repository of each of a contract's pools by name, or of one of them; ``""`` for a contract without.

    Raises:
        InputError: Contract or source are wrong, ``mount`` is no place, or there is no such pool.
    """
    found = file.of_pools(pool).items()
    return {name: render_contract(each, store, report, mount=mount) for name, each in found}


def render_contract(
    file: ContractFile, store: Store, report: Report, *, mount: str | None = None
) -> Rendered:
    """Render the repository of a contract's engine; ``mount`` is where containers see it.

    Raises:
        InputError: Contract or source are wrong, or ``mount`` is no place.
    """
    from trtkit.triton.repository import MOUNT, render

    place = MOUNT if mount is None else mount
    if not place.startswith("/") or place == "/":
        raise InputError(f"{place!r} is no folder of a container", hint=f"give one such as {MOUNT}")
    source, plan = resolve_chosen(file, store, report)
    draft = resolve_draft(file, store, report)
    return Rendered(file, source, plan, draft, render(plan, mount=place.rstrip("/"), draft=draft))


def foreign_problems(folder: Path, line: str | None) -> list[Problem]:
    """Return what is wrong with a repository of which there is no contract.

    Raises:
        InputError: Nothing is known of the release line.
    """
    from trtkit.triton.lint import lint

    if line is not None and line not in LINES:
        hint = f"lines that are: {', '.join(LINES)}"
        raise InputError(f"nothing is known of TensorRT-LLM {line}", hint=hint)
    return [*_touched(folder), *changed_engines(folder), *lint(folder, line)]


def changed_engines(folder: Path) -> list[Problem]:
    """Return which files are not as they were built; what was rendered is left out, which may be rendered again.

    What another version of trtkit built cannot be compared, and need be no worse for that.
    """
    from trtkit.triton.folder import recorded

    texts = {str(folder / name) for name in recorded(folder)}
    found = [each for each in changed_files(folder) if each.file not in texts]
    return [
        replace(each, severity=Severity.WARNING) if each.message == OTHER_VERSION else each for each in found
    ]


def _touched(folder: Path) -> list[Problem]:
    """Tell what is gone of what trtkit wrote, and warn of what was edited, which may be meant."""
    from trtkit.triton.folder import State, touched

    found = {each.path: each.state is State.MISSING for each in touched(folder)}
    return [
        Problem(
            "is missing" if missing else "was edited since trtkit wrote it",
            file=str(folder / path),
            hint="write it again: trtkit repo CONTRACT -o DIR"
            if missing
            else "compare: trtkit repo CONTRACT -o DIR --check",
            severity=Severity.ERROR if missing else Severity.WARNING,
        )
        for path, missing in found.items()
    ]
