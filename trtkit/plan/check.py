"""A pre-flight check: a small named function that finds problems before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import Problem, Severity
from trtkit.plan.types import Plan

Body = Callable[[Contract, ModelConfig, Plan], Iterator[Problem]]


@dataclass(frozen=True)
class Check:
    """One check. All of its problems weigh the same."""

    name: str
    about: str
    """Why it is one, in a sentence."""
    severity: Severity
    body: Body

    def __call__(self, contract: Contract, model: ModelConfig, plan: Plan) -> list[Problem]:
        """Return what is wrong."""
        return [replace(found, severity=self.severity) for found in self.body(contract, model, plan)]


def refuses(body: Body) -> Check:
    """Make a check of a function whose problems stop the plan."""
    return _check(body, Severity.ERROR)


def warns(body: Body) -> Check:
    """Make a check of a function whose problems are shown."""
    return _check(body, Severity.WARNING)


def _check(body: Body, severity: Severity) -> Check:
    about = " ".join((body.__doc__ or "").split("\n\n")[0].split())
    return Check(body.__name__, about, severity, body)
