"""Whether a folder is for the machine that it is to run on: what it was built for, what the target has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtkit.errors import Problem
from trtkit.flow.against.checkpoint import compare_checkpoint
from trtkit.flow.against.comparison import Comparison
from trtkit.flow.against.engine import compare_engine
from trtkit.flow.against.target import Target, parse_target
from trtkit.flow.inspect import Kind, kind_of
from trtkit.flow.inspect.repository import engine_folders
from trtkit.plan.types import Plan

__all__ = ["Comparison", "Target", "compare", "engine_problems", "parse_target"]

_CHECKPOINTS = (Kind.CHECKPOINT, Kind.HUGGING_FACE)


def compare(folder: Path, target: Target) -> Comparison:
    """Compare a folder with a target: what is wrong, and what was compared at all."""
    kind = kind_of(folder)
    if kind in _CHECKPOINTS:
        return compare_checkpoint(folder, target)
    if kind in {Kind.ENGINE, Kind.REPOSITORY}:
        return compare_engine(folder, target)
    if kind is not Kind.PRODUCT:
        return Comparison()
    # A product of another stage depends on no machine, whatever it was made on the way to.
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and (path / "config.json").is_file()]
    return sum((compare(path, target) for path in inside), Comparison())


def engine_problems(repository: Path, plan: Plan, contract: Path, overrides: Sequence[str]) -> list[Problem]:
    """Return why engines that lie in a repository are not those of a plan, each with the command that builds them."""
    origin: Mapping[str, object] = {"contract": {"path": str(contract), "set": list(overrides)}}
    target = Target.of_plan(plan)
    found = (compare_engine(folder, target, rebuild=origin) for folder in engine_folders(repository))
    return [problem for each in found for problem in each.problems]
