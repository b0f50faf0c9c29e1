"""Tasks of EleutherAI's lm-eval: found and checked before anything runs, then asked of whatever computes logits."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress, silent
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.quantize.gate.executor import Executor
from trtkit.quantize.gate.metrics import Doubles

if TYPE_CHECKING:
    from trtkit.quantize.gate.harness_model import HarnessModel

PACKAGE = "lm_eval"
INSTALL = "pip install 'trtkit[lm-eval]'"
SEED = 1234
"""lm-eval's own, for the examples in front of a question."""
Scores = Mapping[tuple[str, str], Doubles]
"""By name and metric one value for each question."""
_ASKED = {"multiple_choice", "loglikelihood"}
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE")
_LOCAL = "write the task with data of its own: dataset_path: json, and data_files beside its YAML"


@dataclass(frozen=True)
class TaskChoice:
    """What to ask, in the words of lm-eval."""

    names: tuple[str, ...]
    """Tasks, groups or tags; each is judged as one."""
    folder: Path | None = None
    """YAML files of tasks of one's own, with their data."""
    limit: int | None = None
    """Questions of each task at most."""
    num_fewshot: int | None = None
    """Examples in front of each question; None for what the task says."""
    seed: int = SEED


@dataclass(frozen=True)
class Tasks:
    """Tasks that were found, with their data."""

    choice: TaskChoice
    found: Mapping[str, Mapping[str, Any]]
    """The tasks that a name stands for."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that is asked, and of what is right."""
        digest = hashlib.sha256()
        for name, task, instance in self._instances():
            right = str(task.doc_to_target(instance.doc))
            said = [name, task.task_name, instance.doc_id, *map(str, instance.args), right]
            digest.update(json.dumps(said).encode() + b"\n")
        return digest.hexdigest()

    def check(self, source: HfCheckpoint, tokenizer: Any) -> None:
        """Refuse what the model cannot be asked.

        Raises:
            InputError: A question is too long, has no answer of its own, or tokens that the model lacks.
        """
        model = _model(_Nobody(), source, tokenizer, silent, "tasks")
        room, vocab_size = source.config.max_position_embeddings, source.config.vocab_size
        for name, task, instance in self._instances():
            context, ending = model.encoded(*instance.args)
            where = f"task {name}: question {instance.doc_id} of {task.task_name}"
            if not context or not ending:
                message = f"{where} has {'an answer' if context else 'a text'} without tokens of its own"
                raise InputError(message, hint="leave the question out, or write it otherwise")
            if (length := len(context) + len(ending) - 1) > room:
                message = f"{where} has {length:,} tokens, the model takes {room:,}"
                raise InputError(message, hint="take fewer examples (--shots), or another task")
            if (largest := max(context + ending)) >= vocab_size:
                message = f"{where} has token {largest}, and the model has {vocab_size}"
                raise InputError(message, hint="take tokenizer and model from one place")

    def scores(
        self, executor: Executor, source: HfCheckpoint, tokenizer: Any, progress: Progress, who: str
    ) -> Scores:
        """Ask everything; a name of which a logit is no number has no score that is one."""
        scores: dict[tuple[str, str], Doubles] = {}
        for name, tasks in self.found.items():
            model = _model(executor, source, tokenizer, progress, f"{who}: {name}")
            for metric, values in _answered(model, tasks, self.choice.limit).items():
                scores[name, metric] = values if model.is_finite else np.full_like(values, np.nan)
        return scores

    def _instances(self) -> Iterator[tuple[str, Any, Any]]:
        for name, tasks in self.found.items():
            for task in tasks.values():
                for instance in task.instances:
                    yield name, task, instance


def need_lm_eval() -> None:
    """Make sure that it is installed.

    Raises:
        EnvironmentLacks: It is not.
    """
    if find_spec(PACKAGE) is None:
        raise EnvironmentLacks(
            "tasks of lm-eval need the package lm_eval, which is not installed", hint=INSTALL
        )


def open_tasks(choice: TaskChoice) -> Tasks:
    """Find the tasks and their data; nothing is fetched unless HF_HUB_OFFLINE=0 is in the environment.

    Raises:
        EnvironmentLacks: lm-eval is not installed.
        InputError: There is no such task, its data are not here, or it asks for more than likelihoods.
    """
    need_lm_eval()
    if len(set(choice.names)) < len(choice.names):
        raise InputError("a task of lm-eval is named twice", hint="name each once")
    if choice.folder is not None and not choice.folder.is_dir():
        raise InputError(
            "is no folder of tasks", path=choice.folder, hint="name the one with their YAML files"
        )
    _stay_offline()
    folder = choice.folder.resolve() if choice.folder else None
    manager = _manager(choice.names, folder)
    return Tasks(choice, {name: _opened(name, manager, choice, folder) for name in choice.names})


def _manager(names: Sequence[str], folder: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    own = TaskManager(include_path=folder, include_defaults=False)
    # Indexing the 14,000 that come with lm-eval takes seconds; groups may be of those.
    return own if set(names) <= set(own.all_subtasks) else TaskManager(include_path=folder)


def _opened(name: str, manager: Any, choice: TaskChoice, folder: Path | None) -> dict[str, Any]:
    if name not in manager.all_tasks:
        near = difflib.get_close_matches(name, manager.all_tasks, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`lm-eval ls tasks` lists them"
        raise InputError(f"lm-eval has no task {name}", hint=hint)
    _seed(choice.seed)
    try:
        with _inside(folder):
            tasks: dict[str, Any] = manager.load([name])["tasks"]
    # Whatever a task, which may be code, and the libraries that find its data think of.
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        message = f"the data of task {name} cannot be read here: {type(error).__name__}: {said}"
        hint = f"fetch them once with {'=0 '.join(_OFFLINE)}=0 in the environment, or {_LOCAL}"
        raise InputError(message, hint=hint) from error
    for task in tasks.values():
        _check_task(name, task, folder)
        _prepare(task, choice)
    return tasks


def _check_task(name: str, task: Any, folder: Path | None) -> None:
    if (kind := task.OUTPUT_TYPE) not in _ASKED:
        hint = "take tasks of the kinds multiple_choice and loglikelihood"
        hint = "perplexity is what the gate measures with --data" if "rolling" in str(kind) else hint
        raise InputError(f"task {name}: {task.task_name} needs {kind}, which the gate has not", hint=hint)
    if not _metrics(task):
        message = f"task {name}: {task.task_name} has no metric that is a mean over questions, the higher the better"
        raise InputError(message, hint="add one to its metric_list, for instance acc")
    files = (task.config.dataset_kwargs or {}).get("data_files") if folder else None
    for file in _leaves(files):
        if "://" not in file and not (folder and (folder / file).resolve().is_relative_to(folder)):
            message = f"task {name}: its data {file} are not in the folder of the task"
            raise InputError(message, path=folder, hint="put them there, and name them relative to it")


def _prepare(task: Any, choice: TaskChoice) -> None:
    """Set what is random or was left open, as ``lm_eval.simple_evaluate`` does, and phrase the questions."""
    own = task.get_config("num_fewshot")
    # A task that says 0 means it.
    shots = own if own == 0 or choice.num_fewshot is None else choice.num_fewshot
    task.set_config(key="num_fewshot", value=shots or 0)
    task.set_fewshot_seed(seed=choice.seed)
    try:
        task.build_all_requests(limit=choice.limit)
        _check_answers(task)
    except (ValueError, KeyError, TypeError, IndexError, AssertionError) as error:
        message = f"task {task.task_name} cannot be phrased: {type(error).__name__}: {error}"
        raise InputError(
            message, hint="look at its doc_to_text, doc_to_choice, doc_to_target and splits"
        ) from error


def _check_answers(task: Any) -> None:
    """Refuse what lm-eval would count as answered wrongly by every model."""
    if task.OUTPUT_TYPE != "multiple_choice" or not hasattr(task, "multiple_input"):
        return
    for doc in {each.doc_id: each.doc for each in task.instances}.values():
        right = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
        choices = task.doc_to_choice(doc)
        for one in right if isinstance(right, list) else [right]:
            place = choices.index(one) if one in choices else one
            if not isinstance(place, int) or not 0 <= place < len(choices):
                message = f"task {task.task_name}: the right answer {one!r} is none of {len(choices)} choices"
                raise InputError(message, hint="look at its doc_to_target, and at its data")


def _answered(model: HarnessModel, tasks: Mapping[str, Any], limit: int | None) -> dict[str, Doubles]:
    """Return the values of the metrics that all tasks have, question after question."""
    from lm_eval.evaluator import evaluate

    found = evaluate(lm=model, task_dict={"tasks": dict(tasks)}, limit=limit, bootstrap_iters=0)
    metrics = set.intersection(*(set(_metrics(task)) for task in tasks.values()))
    # With several filters the first one counts.
    rows = [row for rows in found["samples"].values() for row in rows if row["filter"] == rows[0]["filter"]]
    return {
        metric: np.array([float(row[metric]) for row in rows])
        for metric in sorted(metrics)
        if all(metric in row for row in rows)
    }


def _metrics(task: Any) -> list[str]:
    better = task.higher_is_better()
    means = (name for name, way in task.aggregation().items() if getattr(way, "__name__", "") == "mean")
    return [name for name in means if better.get(name)]


def _model(
    executor: Executor, source: HfCheckpoint, tokenizer: Any, progress: Progress, step: str
) -> HarnessModel:
    from trtkit.quantize.gate.harness_model import HarnessModel

    return HarnessModel(executor, source, tokenizer, progress, step)


class _Nobody:
    """Only encodes."""

    def logits(self, tokens: Any) -> Any:
        raise NotImplementedError


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif value:
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(each)


def _stay_offline() -> None:
    """Keep Hugging Face's libraries off the network, and quiet; they read the environment once, when imported."""
    for name in _OFFLINE:
        os.environ.setdefault(name, "1")
    wanted = os.environ["HF_HUB_OFFLINE"].upper() in {"1", "ON", "YES", "TRUE"}
    hub: Any = importlib.import_module("huggingface_hub.constants")
    datasets: Any = importlib.import_module("datasets")
    hub.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = datasets.config.HF_DATASETS_OFFLINE = wanted
    datasets.disable_progress_bars()
    # It writes bars among ours, and has no switch for them.
    phrasing: Any = importlib.import_module("lm_eval.api.task")
    phrasing.tqdm = partial(importlib.import_module("tqdm").tqdm, disable=True)
    for name in (PACKAGE, "datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _seed(seed: int) -> None:
    """Set the generators that tasks shuffle with."""
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def _inside(folder: Path | None) -> Iterator[None]:
    """Let relative names of data mean files of the folder."""
    before = Path.cwd()
    try:
        os.chdir(folder or before)
        yield
    finally:
        os.chdir(before)
