"""Planning from files: a contract, or no more than a model's ``config.json``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.model import Kept, ModelConfig
from trtkit.checkpoint.hf import HfCheckpoint, read_json, read_quant_config
from trtkit.checkpoint.kept import kept_by
from trtkit.checkpoint.progress import silent
from trtkit.checkpoint.source import find as find_source
from trtkit.checkpoint.source import resolve as resolve_source
from trtkit.checkpoint.storage import find_storage
from trtkit.contract import Contract, ContractFile
from trtkit.contract.formats import BackendName, KvCacheFormat, WeightFormat
from trtkit.contract.load import parse_contract
from trtkit.engine.store import Store
from trtkit.errors import ContractError, InputError, Problem, Severity
from trtkit.flow.build import Report
from trtkit.flow.companions import Companions, draft_problems
from trtkit.flow.gate import options_of, task_problem
from trtkit.flow.machine import this_machine
from trtkit.flow.silicon import silicon_fit
from trtkit.plan import Plan, make_plan
from trtkit.plan.compare import Candidate, Field, compare
from trtkit.plan.hf_config import parse_hf_config
from trtkit.plan.measured import Measured, parse_measured
from trtkit.plan.pace import Speed
from trtkit.plan.quantization import quant_plan_of
from trtkit.plan.solve import Solution, Unknown, changed, solve
from trtkit.plan.speed import linear_operations
from trtkit.plan.types import Workload

_CONFIG, _GENERATION = "config.json", "generation_config.json"
_BARE = 'name: "{name}"\nmodel: {{source: .}}\nclasses: {{default: {{priority: 1}}}}\n'


@dataclass(frozen=True)
class Question:
    """What is to be planned: a contract and its model, and what else is known."""

    file: ContractFile
    model: ModelConfig
    warnings: tuple[Problem, ...]
    config: Path
    """The model's ``config.json``."""
    bare: bool
    """There is no contract, only a model: nothing was promised, and problems have no lines."""
    speed: Speed | None = None
    """Of exactly this model on this GPU, asked of aiconfigurator."""
    measured: Measured | None = None
    measured_file: str = ""
    workload: Workload | None = None

    @property
    def contract(self) -> Contract:
        """The contract."""
        return self.file.contract

    def by_pool(self, pool: str | None = None) -> dict[str, Question]:
        """Return the question of each of the contract's pools, or of one; ``""`` where it has none.

        Raises:
            InputError: There is no such pool.
        """
        return {name: replace(self, file=file) for name, file in self.file.of_pools(pool).items()}

    def answer(self) -> Plan:
        """Return the plan, with the warnings of model and contract; a draft model is planned beside it.

        Raises:
            ContractError: Something cannot be; all problems are listed, with the contract's lines.
        """
        plan, problems = self._plan_or_problems()
        draft, of_draft = self._draft()
        if plan is None:
            raise ContractError([*problems, *(each for each in of_draft if each.severity is Severity.ERROR)])
        if draft is not None and (file := Companions.of(self.file).draft):
            of_draft += draft_problems(file, draft, plan)
        if wrong := [each for each in of_draft if each.severity is Severity.ERROR]:
            raise ContractError(wrong)
        told = [
            self.located(each) for each in plan.warnings if not (self.bare and each.key.startswith("classes"))
        ]
        # The plan says the same with the value that the runtime needs.
        read = [each for each in self.warnings if plan.target is None or each.key != "sliding_window"]
        lacking = task_problem(options_of(self.file))
        return replace(
            plan, warnings=(*read, *told, *of_draft, *([self.located(lacking)] if lacking else []))
        )

    def _plan_or_problems(self) -> tuple[Plan | None, list[Problem]]:
        try:
            return self._plan(), []
        except ContractError as error:
            return None, [self.located(problem) for problem in error.problems]

    def _draft(self) -> tuple[Plan | None, list[Problem]]:
        """Return the plan of the draft model, where there is one and it can be planned, and what is wrong with it."""
        file = Companions.of(self.file).draft
        if file is None:
            return None, []
        # What a draft says of drafts is refused when both are compared.
        contract = changed(file.contract, speculation=None)
        if contract.engine.backend is not self.contract.engine.backend:
            message, hint = (
                f"the draft's back end is {contract.engine.backend.value}",
                "set it to the target's",
            )
            return None, [file.locate(Problem(message, "engine.backend", hint))]
        try:
            question = ask(replace(file, contract=contract))
            return question.answer(), []
        except ContractError as error:
            return None, list(error.problems)
        except InputError as error:
            message = f"the draft model is not counted: {error.message}"
            hint = "fetch it: `trtkit plan` reads no more than its config.json"
            return None, [
                Problem(message, "engine.speculation.draft", hint, str(file.path), severity=Severity.WARNING)
            ]

    def with_silicon(self) -> Question:
        """Return the question with the speed that aiconfigurator has for exactly this model; takes half a minute.

        Raises:
            EnvironmentLacks: aiconfigurator is not installed.
            InputError: It has no timings for this model, GPU or format.
        """
        target, experts = replace(self, workload=None).answer().target, self.model.moe is not None
        if target is None:
            backend = self.contract.engine.backend.value
            raise InputError(f"the {backend} back end has no silicon table", hint="measure it: --calibration")
        if target.trtllm is None:
            message = f"its operators were measured with TensorRT-LLM, not with {self.contract.engine.backend.value}"
            raise InputError(message, hint="leave --silicon out, or measure it: --calibration")
        formats = quant_plan_of(self.contract.quantization)
        if len(linear_operations(self.model, target.ranks, formats)) > 1:
            message = "aiconfigurator knows engines of one format, and this one's layers have several"
            raise InputError(message, hint="leave --silicon out: the roofline knows them")
        fit = silicon_fit(self.config, target.gpu.name, target.ranks, formats, has_experts=experts)
        return replace(self, speed=fit)

    def solve(self, unknown: Unknown) -> tuple[Solution, Plan]:
        """Return the value that was asked for, and the plan with it.

        Raises:
            InputError: No value fits, or something else of the contract is wrong.
        """
        contract = self._on_gpus() if unknown is Unknown.GPU else self.contract
        try:
            solution = solve(unknown, contract, self.model, this_machine())
        except ContractError as error:
            raise ContractError([self.located(problem) for problem in error.problems]) from None
        file = replace(self.file, contract=solution.contract)
        return solution, replace(self, file=file).answer()

    def compare(self, field: Field) -> list[Candidate]:
        """Return every way to serve the contract, best first; without a GPU back end that of TensorRT-LLM is meant."""
        field = replace(field, workload=self.workload)
        return compare(self._on_gpus(), self.model, this_machine(), field)

    def _plan(self) -> Plan:
        speed, machine = self.speed, this_machine()
        if self.measured is not None:
            # Whether it is of this engine shows in a plan alone.
            speed = self.measured.of(make_plan(self.contract, self.model, machine), file=self.measured_file)
        if self.workload and speed is None and not BACKENDS[self.contract.engine.backend.value].needs_gpu:
            message = f"nothing is known of the speed of the {self.contract.engine.backend.value} back end"
            hint = "give --calibration too, or leave --prompt-tokens and --output-tokens out"
            raise InputError(f"{message}, so there are no rates of a request", hint=hint)
        return make_plan(self.contract, self.model, machine, measured=speed, workload=self.workload)

    def of_gpus(self) -> Iterator[Problem]:
        """Yield warnings where GPUs are asked for: the contract's back end has none, its draft model is not tried."""
        given = self.contract.engine
        if given.speculation is not None and given.speculation.draft is not None:
            message = (
                "the draft model is left out of what is tried: neither its memory nor its tokens are counted"
            )
            hint = "plan the contract for the one that you choose"
            yield self.located(Problem(message, "engine.speculation", hint, severity=Severity.WARNING))
        if "backend" in given.model_fields_set and not BACKENDS[given.backend.value].needs_gpu:
            message = f"{given.backend.value} runs on no GPU: the answer is for {BackendName.TENSORRT.value}"
            yield self.located(Problem(message, "engine.backend", severity=Severity.WARNING))

    def _on_gpus(self) -> Contract:
        if BACKENDS[self.contract.engine.backend.value].needs_gpu:
            return self.contract
        return changed(self.contract, backend=BackendName.TENSORRT, threads=None)

    def located(self, problem: Problem) -> Problem:
        """Return a problem with the contract's line; as it is where there is only a model."""
        return problem if self.bare else self.file.locate(problem)


def ask(
    file: ContractFile,
    config: Path | None = None,
    report: Report = silent,
    *,
    bare: bool = False,
    of_step: bool = False,
) -> Question:
    """Return the question about a contract, or one of its pools, with the model that it is about.

    With ``config``, and for a back end with a GPU, the model's configuration is all that is read: weights need not be
    there. They need not for a question about a step either.

    Raises:
        InputError: A file is missing or wrong.
    """
    if config is None and not BACKENDS[file.contract.engine.backend.value].needs_gpu:
        source = file.contract.model.source
        folder = resolve_source(source, file.path.parent, Store().root / "source", report)
        if of_step and not any(folder.glob("*.safetensors*")):
            return _question(file, folder / _CONFIG, bare=bare)
        opened = HfCheckpoint.open(folder)
        warnings = (*file.warnings, *opened.warnings)
        return Question(file, opened.config, warnings, opened.folder / _CONFIG, bare)
    return _question(file, config or _find_config(file), bare=bare)


def bare_contract(config: Path, overrides: Sequence[str]) -> ContractFile:
    """Return a contract for a ``config.json`` alone, which promises nothing.

    Raises:
        ContractError: Something is wrong with the overrides, since nothing else can be.
    """
    try:
        return parse_contract(_BARE.format(name=_name(config)), config, overrides)
    except ContractError as error:
        raise ContractError([replace(each, file="", line=None) for each in error.problems]) from None


def _question(file: ContractFile, config: Path, *, bare: bool) -> Question:
    generation, raw = config.with_name(_GENERATION), read_json(config)
    model, warnings = parse_hf_config(
        raw, file=str(config), generation=read_json(generation) if generation.exists() else None
    )
    try:
        storage = find_storage(raw, read_quant_config(config.parent), file=str(config))
    except ContractError as error:
        # Nothing that is built takes it over, which does not keep anybody from asking what its formats would need.
        message = "the plan counts the formats that it was given, and the source cannot be taken over"
        told = [replace(each, severity=Severity.WARNING) for each in error.problems]
        warnings += [replace(each, message=f"{message}: {each.message}") for each in told]
        return Question(file, model, (*file.warnings, *warnings), config, bare)
    model = replace(model, kept=kept_by(model, storage))
    if bare and model.kept is not None:
        file = _as_kept(file, model.kept)
    return Question(file, model, (*file.warnings, *warnings), config, bare)


def _as_kept(file: ContractFile, kept: Kept) -> ContractFile:
    """Return the contract with the source's formats where none are given."""
    asked = file.contract.quantization
    formats = {"weights": WeightFormat(kept.weights[0]), "kv_cache": KvCacheFormat(kept.kv_cache)}
    left = {name: value for name, value in formats.items() if name not in asked.model_fields_set}
    quantization = asked.model_copy(update=left)
    return replace(file, contract=file.contract.model_copy(update={"quantization": quantization}))


def _find_config(file: ContractFile) -> Path:
    source, base = file.contract.model.source, file.path.parent
    hint = "give the model's configuration: --config CONFIG.json"
    try:
        folder = find_source(source, base, Store().root / "source")
    except InputError as error:
        raise InputError(error.message, hint=hint, path=error.path) from error
    if folder is None or not (folder / _CONFIG).is_file():
        raise InputError(f"the configuration of {source} is not on this machine", path=file.path, hint=hint)
    return folder / _CONFIG


def _name(path: Path) -> str:
    stem = path.parent.resolve().name if path.name == _CONFIG else path.stem
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("._-")[:63].strip("._-") or "model"


def read_calibration(path: Path) -> Measured:
    """Return the measured speed of an engine, which says which engine that is.

    Raises:
        InputError: The file is missing or holds something else.
    """
    return parse_measured(read_json(path), file=str(path))
