"""The stages of a build, each with a content key over everything that can change its bytes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.convert import ConversionReport, check, convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export.formats import find_format
from trtkit.checkpoint.progress import Progress, silent
from trtkit.checkpoint.recipe import Recipe
from trtkit.conventions import CHECKPOINT_CONFIG, rank_file
from trtkit.engine.backend import Backend, backend_for
from trtkit.engine.edgellm.backend import export_argv, need_chat_template
from trtkit.engine.exported import EXPORTED
from trtkit.engine.keys import COMPILE, CONVERT, REPO, plan_inputs
from trtkit.engine.manifest import code_digest
from trtkit.engine.store import Stage, Store
from trtkit.engine.tensorrt.backend import Builder, TensorrtBackend
from trtkit.errors import InputError, Problem, Severity, StageError
from trtkit.flow.alpha import ALPHAS, AUTO, Alpha
from trtkit.flow.calibrate import Calibrating
from trtkit.flow.companions import Companions
from trtkit.flow.convert import FORMS, ConvertOptions, choose_recipe, notes_of, warnings_of
from trtkit.flow.gate import GateOptions, Judgement, gate_stage
from trtkit.flow.inputs import digests, source_digests
from trtkit.plan import Plan
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.smoothing import Alphas

_BUILT_BY = ("trtllm", "image_digest")
"""Facts of an engine that its repository has too."""
CHECKPOINT = "checkpoint"
"""Folder of the checkpoint inside its product, whose own root holds the manifest."""


@dataclass(frozen=True)
class Way:
    """One format of the chain, made out for its source."""

    source: HfCheckpoint
    plan: Plan
    calibrating: Calibrating | None
    store: Store
    progress: Progress
    gate: GateOptions | None = None
    """What the quality gate asks; None for no gate."""
    builder: Builder = field(default_factory=Builder)
    """How ``trtllm-build`` is run, where it is."""
    companions: Companions = field(default_factory=Companions)

    @property
    def ranks(self) -> Parallelism:
        """What the checkpoint is divided among."""
        divides_itself = self.plan.backend in EXPORTED
        return ONE_RANK if divides_itself or self.plan.target is None else self.plan.target.ranks

    @property
    def form(self) -> str:
        """What the checkpoint is written for: Hugging Face folders have no clamps."""
        return FORMS[self.plan.backend in EXPORTED]

    def check(self) -> None:
        """Make sure, from headers, that the source can be written so once there are ranges.

        Raises:
            InputError: It cannot.
        """
        self.companions.check(self.source, self.plan)
        if self.companions.heads:
            return
        ranges = ActRange.awaited(self.calibrating.ranges) if self.calibrating else None
        recipe = self._recipe(ranges, self._fixed_alpha)
        check(self.source, dtype=self.plan.dtype, recipe=recipe, parallelism=self.ranks)
        if self.plan.backend in EXPORTED:
            find_format(recipe.quantization, file="")
        if self.plan.backend == "edgellm":
            need_chat_template(self.source)

    def write(self, out: Path, alpha: float | Alphas | None = None) -> ConversionReport:
        """Write the checkpoint, once there are ranges."""
        ranges = self.calibrating.ranges if self.calibrating else None
        if alpha is None:
            alpha = self.alpha.found() if self.alpha else self._fixed_alpha
        recipe = self._recipe(ranges, alpha)
        return convert(
            self.source,
            out,
            dtype=self.plan.dtype,
            recipe=recipe,
            parallelism=self.ranks,
            notes=notes_of(ranges),
            progress=self.progress,
        )

    @cached_property
    def alpha(self) -> Alpha | None:
        """The search for alpha; None where the contract has one, or the format none."""
        if self.plan.quantization.alpha != AUTO or self.calibrating is None:
            return None
        inputs = {
            "source": source_digests(self.source),
            "calibrate": self.calibrating.stage.key,
            "plan": plan_inputs(self.plan, CONVERT),
        }
        quiet = replace(self, progress=silent)
        return Alpha(
            self.source,
            inputs,
            lambda alpha, out: quiet.write(out, alpha),
            self.store,
            self.progress,
            self.gate,
        )

    @property
    def _fixed_alpha(self) -> float | None:
        """The contract's, or one that stands for what is to be found."""
        alpha = self.plan.quantization.alpha
        return ALPHAS[0] if alpha == AUTO else cast("float | None", alpha)

    def warnings(self) -> list[Problem]:
        """Return what a written checkpoint should make one think about, once there are ranges."""
        ranges = self.calibrating.ranges if self.calibrating else None
        return warnings_of(self.source, self._options(ranges, self._fixed_alpha), self.plan.dtype)

    def _recipe(self, ranges: Path | ActRange | None, alpha: float | Alphas | None) -> Recipe:
        return choose_recipe(self.source, self._options(ranges, alpha))

    def _options(self, ranges: Path | ActRange | None, alpha: float | Alphas | None) -> ConvertOptions:
        formats = self.plan.quantization
        return ConvertOptions(
            weights=formats.weights,
            kv_cache=formats.kv_cache,
            act_range=ranges,
            smoothquant=formats.smoothquant,
            alpha=alpha,
            kv_scale=formats.kv_scale,
            exclude=formats.exclude,
            overrides=formats.overrides,
            form=self.form,
        )


def stages(way: Way, *, tried: Sequence[Mapping[str, Any]]) -> tuple[Stage, ...]:
    """Return the build's stages in order; each names the one before it by its key.

    Args:
        way: The model, and how it is to be built.
        tried: What the quality gate said about other formats of the same build.

    Raises:
        InputError: The source has no tokenizer that fits, without which no text model can be served.
    """
    source, store, progress, options = way.source, way.store, way.progress, way.gate
    need_tokenizer(source)
    before = [each.stage for each in (way.calibrating, way.alpha) if each]
    checkpoint = convert_stage(way)
    engine = compile_stage(checkpoint, way)
    draft = draft_stages(way)
    folder = store.path(checkpoint.name, checkpoint.key) / CHECKPOINT
    weights = way.plan.quantization.weights
    judged = {
        "checkpoint": Judgement(folder, checkpoint, source, weights, tuple(tried)),
        "engine": Judgement(store.path(engine.name, engine.key), engine, source, weights, tuple(tried)),
    }
    gates = {on: [gate_stage(judged[on], options, store, progress)] for on in options.on} if options else {}
    built = (*before, checkpoint, *gates.get("checkpoint", ()), engine, *gates.get("engine", ()))
    if way.plan.backend == "edgellm":  # which has a server of its own
        return built
    return *built, repo_stage(engine, way, draft[-1] if draft else None)


def draft_stages(way: Way) -> tuple[Stage, ...]:
    """Return the stages of the draft model, up to its engine; none without one."""
    draft = way.companions.draft_way
    if draft is None:
        return ()
    before = [each.stage for each in (draft.calibrating, draft.alpha) if each]
    checkpoint = convert_stage(draft)
    return *before, checkpoint, compile_stage(checkpoint, draft)


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


def convert_stage(way: Way) -> Stage:
    """Hugging Face folder, and ranges where the format takes them → TensorRT-LLM checkpoint."""
    if way.companions.heads:
        return _adopt_stage(way, way.companions.heads)

    def run(out: Path) -> Mapping[str, Any]:
        done = way.write(out / CHECKPOINT)
        return {
            "tensors": done.tensors,
            "bytes": done.bytes_written,
            "tied_embeddings": done.tied_embeddings,
            "warnings": [
                {"message": each.message, "key": each.key, "hint": each.hint} for each in way.warnings()
            ],
        }

    inputs = {
        "code": code_digest(),
        "source": source_digests(way.source),
        "calibrate": way.calibrating.stage.key if way.calibrating else None,
        "alpha": way.alpha.stage.key if way.alpha else None,
        "form": way.form,
        "plan": plan_inputs(way.plan, CONVERT),
    }
    files = (f"{CHECKPOINT}/{CHECKPOINT_CONFIG}", f"{CHECKPOINT}/{rank_file(0)}")
    return Stage(CONVERT, inputs, run, files)


def _adopt_stage(way: Way, heads: Path) -> Stage:
    """Checkpoint with heads, as somebody else converted it → the same, where it stays as it is."""
    names = (CHECKPOINT_CONFIG, *(rank_file(rank) for rank in range(way.ranks.world)))

    def run(out: Path) -> Mapping[str, Any]:
        (out / CHECKPOINT).mkdir()
        for name in names:
            shutil.copy2(heads / name, out / CHECKPOINT / name)
        return {"bytes": sum((heads / name).stat().st_size for name in names)}

    inputs = {
        "code": code_digest(),
        "source": source_digests(way.source),
        "heads": digests(heads / name for name in names),
        "plan": plan_inputs(way.plan, CONVERT),
    }
    return Stage(CONVERT, inputs, run, tuple(f"{CHECKPOINT}/{name}" for name in names))


def compile_stage(checkpoint: Stage, way: Way) -> Stage:
    """Checkpoint → engine."""
    plan, store, report = way.plan, way.store, way.progress
    backend = _backend(way)
    folder = store.path(checkpoint.name, checkpoint.key) / CHECKPOINT

    def run(out: Path) -> Mapping[str, Any]:
        report("compile", 0, None)
        log = store.root / "log" / f"{plan.name}.{stage.key[:8]}.compile.log"
        facts = backend.compile(folder, out, plan, report, log)
        report("compile", 1, 1)
        return facts

    inputs = {
        "code": code_digest(),
        "checkpoint": checkpoint.key,
        "backend": dict(backend.versions()),
        "plan": plan_inputs(plan, COMPILE),
    }
    if way.companions.adapters:
        inputs |= way.companions.digests
    stage = Stage(COMPILE, inputs, run, files=backend.files(plan))
    if isinstance(backend, TensorrtBackend):
        job = backend.job(folder, store.path(stage.name, stage.key), plan)
        return replace(stage, commands=tuple(job.commands()), unfit=lambda facts: backend.unfit(facts, plan))
    if plan.backend == "edgellm":
        return replace(stage, commands=(export_argv(store.path(stage.name, stage.key)),))
    return stage


def _backend(way: Way) -> Backend:
    if way.plan.backend == "tensorrt":
        return TensorrtBackend(way.builder, way.companions.adapters)
    return backend_for(way.plan.backend, way.source)


def repo_stage(engine: Stage, way: Way, draft: Stage | None) -> Stage:
    """Engine, and that of the draft model where there is one → Triton model repository."""
    from trtkit.triton.folder import write
    from trtkit.triton.parts import TOKENIZER_FILES, install
    from trtkit.triton.repository import render

    source, plan, store, report = way.source, way.plan, way.store, way.progress
    draft_way = way.companions.draft_way
    files = render(plan, draft=draft_way.plan if draft_way else None)
    drafting = store.path(draft.name, draft.key) if draft else None

    def run(out: Path) -> Mapping[str, Any]:
        report("repo", 0, None)
        write(files, out)
        install(out, store.path(engine.name, engine.key), source.folder, drafting)
        _refuse_unloadable(out, plan)
        report("repo", 1, 1)
        built = store.find(engine.name, engine.key)
        # Who has only the repository still knows what built its engine.
        by = {name: built.facts[name] for name in _BUILT_BY if name in built.facts} if built else {}
        return {"models": sorted({name.split("/")[0] for name in files if "/" in name}), **by}

    inputs = {
        "engine": engine.key,
        **({"draft": draft.key} if draft else {}),
        "plan": plan_inputs(plan, REPO),
        "tokenizer": digests(source.folder / name for name in TOKENIZER_FILES),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    return Stage(REPO, inputs, run, files=tuple(files), unfit=engine.unfit)


def _refuse_unloadable(repository: Path, plan: Plan) -> None:
    """Refuse a repository that Triton would not take, or whose engine is not what it says."""
    from trtkit.triton.lint import lint

    found = lint(repository, plan.target.trtllm if plan.target else None)
    wrong = [each for each in found if each.severity is Severity.ERROR]
    if wrong:
        lines = "".join(f"\n  {each}" for each in wrong)
        raise StageError(f"Triton would not take the repository:{lines}", hint=wrong[0].hint)
