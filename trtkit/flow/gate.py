"""The flow of the quality gate: source → baseline (kept in the store) → candidate → report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import HfCheckpoint, read_json
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.source import resolve as resolve_source
from trtkit.checkpoint.staging import write_json
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.contract import ContractFile
from trtkit.contract.quantization import LmEval
from trtkit.conventions import CHECKPOINT_CONFIG, rank_file
from trtkit.engine.keys import COMPILE
from trtkit.engine.manifest import code_digest
from trtkit.engine.slots.folder import GRAPH_BACKENDS
from trtkit.engine.slots.reader import GraphReader
from trtkit.engine.store import Stage, Store
from trtkit.errors import EnvironmentLacks, InputError, Problem, Severity, VerificationError
from trtkit.flow.engine_executor import EngineExecutor
from trtkit.flow.inputs import data_digests, source_digests, versions
from trtkit.flow.overlap import calibrated_part
from trtkit.flow.words import contract_words, in_words
from trtkit.quantize.gate.baseline import Baseline, write_baseline
from trtkit.quantize.gate.harness import PACKAGE, TaskChoice, Tasks, need_lm_eval, open_tasks
from trtkit.quantize.gate.judge import Exam, Judged
from trtkit.quantize.gate.limits import Limits
from trtkit.quantize.gate.model import load_candidate
from trtkit.quantize.gate.page import page
from trtkit.quantize.gate.report import Report, sample_remarks
from trtkit.quantize.gate.samples import Samples, open_tokenizer, take_samples
from trtkit.quantize.gate.task import Question, check_questions, read_questions
from trtkit.quantize.gate.tensors import Candidate, check_same_model

GATE, ENGINE_GATE = "gate", "gate-engine"
"""Names of the stages: for the checkpoint, and for what was compiled of it."""
GATES = (GATE, ENGINE_GATE)
_OPTIONS = {
    "--data": "quantization.gate.data",
    "--sample-tokens": "quantization.gate.sample_tokens:",
    "--samples": "quantization.gate.samples",
    "--shots": "quantization.gate.lm_eval.num_fewshot",
}
BOTH = ("checkpoint", "engine")
REPORT, PAGE = "report.json", "report.html"


@dataclass(frozen=True)
class GateOptions:
    """What is asked, and what has to be reached."""

    data: Path | None = None
    """File or folder of held-out text; None for the built-in one."""
    samples: int = 32
    sample_tokens: int = 512
    task_file: Path | None = None
    tasks: TaskChoice | None = None
    """Of lm-eval; None for none."""
    dtype: str = "float32"
    """Data type of weights and sums, of baseline and candidate alike."""
    limits: Limits = field(default_factory=Limits)
    on: tuple[str, ...] = ("checkpoint",)
    """What a build has judged: ``checkpoint``, ``engine``."""


def gate_source(
    baseline: str, candidate: Path, options: GateOptions, store: Store, progress: Progress
) -> Report:
    """Find or fetch the baseline, and judge the candidate by it.

    Raises:
        InputError: There is no such baseline; see :func:`run_gate` for the rest.
    """
    if (Path(baseline) / rank_file(0)).is_file():
        message = "is a TensorRT-LLM checkpoint, which has neither a tokenizer nor a model that runs here"
        hint = "give the Hugging Face folder that it was converted from"
        raise InputError(message, path=baseline, hint=hint)
    folder = resolve_source(baseline, Path.cwd(), store.root / "source", progress)
    return run_gate(HfCheckpoint.open(folder), candidate, options, store, progress)


def options_of(file: ContractFile) -> GateOptions | None:
    """Return what the contract asks for; None when it asks for no gate."""
    gate, base = file.contract.quantization.gate, file.path.parent
    if gate is None:
        return None
    return GateOptions(
        data=base / gate.data if gate.data else None,
        samples=gate.samples,
        sample_tokens=gate.sample_tokens,
        task_file=base / gate.task_file if gate.task_file else None,
        tasks=_choice(gate.lm_eval, base) if gate.lm_eval else None,
        dtype=gate.precision,
        limits=Limits(
            gate.max_kl,
            gate.min_top1,
            gate.max_ppl_ratio,
            gate.min_accuracy,
            gate.lm_eval.max_loss if gate.lm_eval else None,
        ),
        on=tuple(gate.on or (BOTH if file.contract.engine.backend.shows_logits else BOTH[:1])),
    )


def _choice(asked: LmEval, base: Path) -> TaskChoice:
    folder = base / asked.folder if asked.folder else None
    return TaskChoice(tuple(asked.tasks), folder, asked.limit, asked.num_fewshot, asked.seed)


@dataclass(frozen=True)
class Judgement:
    """What a build has judged."""

    folder: Path
    """Checkpoint or engine; need not be there yet."""
    made_by: Stage
    """Writes it."""
    source: HfCheckpoint
    weights: str
    """What the contract calls the format."""
    tried: tuple[Mapping[str, Any], ...] = ()
    """Facts of the gate about the formats before this one."""


def gate_stage(judged: Judgement, options: GateOptions, store: Store, progress: Progress) -> Stage:
    """Checkpoint or engine → report. A report that says no is a product too, so that it is not measured again."""
    is_engine = judged.made_by.name == COMPILE

    def run(out: Path) -> Mapping[str, Any]:
        found = run_gate(judged.source, judged.folder, options, store, progress)
        report = replace(found, weights=judged.weights, tried=judged.tried)
        write_json(out / REPORT, report.as_json())
        (out / PAGE).write_text(page(report), encoding="utf-8")
        return {**report.summary(), "tried": list(judged.tried)}

    asked = {
        "data": data_digests(options.data),
        "task_file": data_digests(options.task_file),
        "tasks": _task_digests(options.tasks),
    }
    told = {name: value for name, value in asdict(options).items() if name != "on"}
    inputs: dict[str, Any] = {
        "code": code_digest(),
        "engine" if is_engine else "checkpoint": judged.made_by.key,
        "weights": judged.weights,
        "options": {**told, **asked},
        "tried": list(judged.tried),
        "versions": versions(),
    }
    return Stage(ENGINE_GATE if is_engine else GATE, inputs, run, (REPORT, PAGE))


def _task_digests(choice: TaskChoice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    files = data_digests(choice.folder) or {}
    # Tasks may be Python too.
    read = {name: digest for name, digest in files.items() if "__pycache__" not in name}
    return {**asdict(choice), "folder": read, **versions([PACKAGE])}


def refusal(tried: Sequence[Mapping[str, Any]], report: Path) -> VerificationError:
    """Return the error of a build of which no format passes."""
    said = "; ".join(f"{each['format']}: {', '.join(each['reasons'])}" for each in tried)
    hint = "add a format that loses less to quantization.fallback, or raise the limits of quantization.gate"
    if tried[-1]["kv_cache"]:
        hint = f"try another KV cache (quantization.kv_fallback: [auto]), {hint}"
    details = {"verdict": "fail", "tried": list(tried), "report": str(report / REPORT)}
    message = f"the quality gate says no: {said}"
    return VerificationError(message, path=report / PAGE, hint=hint, details=details)


def check_gate(source: HfCheckpoint, options: GateOptions) -> None:
    """Refuse what cannot be asked, before anything is done.

    Raises:
        EnvironmentLacks: lm-eval is asked for and not installed.
        InputError: Texts, questions or tasks cannot be used with this model.
    """
    with contract_words(_OPTIONS):
        _ = _asked(source, options)


def task_problem(options: GateOptions | None) -> Problem | None:
    """Return what this machine lacks for the tasks of lm-eval, where there are some."""
    try:
        if options and options.tasks:
            need_lm_eval()
    except EnvironmentLacks as error:
        key = "quantization.gate.lm_eval"
        return Problem(error.message, key=key, hint=error.hint, severity=Severity.WARNING)
    return None


def gate_warnings(facts: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what weakens the verdict of a gate."""
    counts = facts["samples"]
    for each in sample_remarks(counts["asked"], counts["used"]):
        yield replace(each, key=f"quantization.gate.{each.key}", hint=in_words(each.hint, _OPTIONS))


def _asked(source: HfCheckpoint, options: GateOptions) -> tuple[Samples, tuple[Question, ...], Tasks | None]:
    tasks = open_tasks(options.tasks) if options.tasks else None
    samples = take_samples(source, options.data, count=options.samples, length_tokens=options.sample_tokens)
    questions = read_questions(options.task_file) if options.task_file else ()
    if options.task_file:
        check_questions(questions, options.task_file, source)
    if tasks:
        tasks.check(source, open_tokenizer(source))
    return samples, questions, tasks


def run_gate(
    source: HfCheckpoint, candidate: Path, options: GateOptions, store: Store, progress: Progress
) -> Report:
    """Judge a TensorRT-LLM checkpoint, or an engine folder that runs here, by the model that it was made from.

    Raises:
        InputError: Candidate and source are of different models, one of them cannot be run, or the text is what the
            candidate was calibrated with.
        EnvironmentLacks: torch, transformers, or the lm-eval that is asked for is not installed.
    """
    if options.limits.min_accuracy is not None and options.task_file is None:
        raise InputError("a smallest accuracy needs questions", hint="give them with --task-file")
    engine = _is_engine(candidate)
    samples, questions, tasks = _asked(source, options)
    # Checked before the baseline, which takes minutes.
    opened = None if engine else Candidate.open(TrtllmCheckpoint.open(candidate), source)
    calibrated = calibrated_part(candidate, open_tokenizer(source), samples)

    def fill(out: Path) -> dict[str, Any]:
        write_baseline(source, samples, questions, tasks, out, dtype=options.dtype, progress=progress)
        return {"samples": len(samples.sequences), "tokens": samples.num_tokens}

    product = store.produce(Stage("baseline", _baseline_inputs(source, samples, tasks, options), fill))
    exam = Exam(
        baseline=Baseline.open(product.path),
        source=source,
        samples=samples,
        questions=questions,
        tasks=tasks,
        tokenizer=open_tokenizer(source),
        limits=options.limits,
        dtype=options.dtype,
    )
    judged = (
        _judged_engine(candidate, source)
        if opened is None
        else _judged_checkpoint(opened, options.dtype, progress)
    )
    return replace(exam.judge(judged, progress), calibrated_part=calibrated)


def _baseline_inputs(
    source: HfCheckpoint, samples: Samples, tasks: Tasks | None, options: GateOptions
) -> dict[str, Any]:
    return {
        "code": code_digest(),
        "source": source_digests(source),
        "samples": samples.digest,
        "task": data_digests(options.task_file),
        "lm_eval": {"asked": tasks.digest, **versions([PACKAGE])} if tasks else None,
        "dtype": options.dtype,
        "versions": versions(),
    }


def _judged_checkpoint(candidate: Candidate, dtype: str, progress: Progress) -> Judged:
    executor, errors = load_candidate(candidate, dtype=dtype, progress=progress)
    block = candidate.checkpoint.config.get("quantization") or {}
    return Judged(
        executor,
        str(candidate.checkpoint.folder),
        f"transformers, {dtype}, with the checkpoint's weights and rounding",
        block.get("quant_algo"),
        block.get("kv_cache_quant_algo"),
        errors,
        executor.hidden,
    )


def _is_engine(folder: Path) -> bool:
    hint = "give the folder of a TensorRT-LLM checkpoint (`trtkit convert`), or an engine of cpu, onnx or rtx"
    if not (folder / CHECKPOINT_CONFIG).is_file():
        message = f"is no candidate: there is no {CHECKPOINT_CONFIG} in it"
        raise InputError(message, path=folder, hint=hint)
    if read_json(folder / CHECKPOINT_CONFIG).get("backend") in {"cpu", *GRAPH_BACKENDS}:
        return True
    if not (folder / rank_file(0)).is_file():
        message = (
            f"is no candidate: there is no {rank_file(0)} in it, nor a {CHECKPOINT_CONFIG} of such an engine"
        )
        raise InputError(message, path=folder, hint=hint)
    return False


def _judged_engine(folder: Path, source: HfCheckpoint) -> Judged:
    config = read_json(folder / CHECKPOINT_CONFIG)
    built = config.get("pretrained_config") or {}
    check_same_model(built, source, path=folder / CHECKPOINT_CONFIG)
    block = built.get("quantization") or {}
    algorithms = (block.get("quant_algo"), block.get("kv_cache_quant_algo"))
    if config.get("backend") in GRAPH_BACKENDS:
        said = "ONNX Runtime, the graph that the engine is made of"
        return Judged(GraphReader(folder), str(folder), said, *algorithms)
    return Judged(EngineExecutor(folder), str(folder), "OpenVINO, the engine itself", *algorithms)
