"""Questions with several answers to choose from: the likeliest letter counts, as for MMLU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import InputError
from trtkit.quantize.calibrate.data import json_rows
from trtkit.quantize.gate.executor import Executor
from trtkit.quantize.gate.metrics import log_softmax
from trtkit.quantize.gate.samples import open_tokenizer

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FORM = '{"question": "...", "choices": ["...", "..."], "answer": 0}'


@dataclass(frozen=True)
class Question:
    """One of them; ``answer`` is the place of the right choice."""

    question: str
    choices: tuple[str, ...]
    answer: int
    line: int
    """In its file."""

    @property
    def prompt(self) -> str:
        """The question as models are asked it."""
        choices = (f"{letter}. {choice}" for letter, choice in zip(_LETTERS, self.choices, strict=False))
        return "\n".join([self.question.strip(), *choices, "Answer:"])


def read_questions(path: Path) -> tuple[Question, ...]:
    """Return the questions of a file of JSON lines; ``answer`` is a place from 0 or a letter.

    Raises:
        InputError: It cannot be read, is empty, or a line is no question.
    """
    questions = tuple(_question(row, path, number) for number, row in json_rows(path, _FORM))
    if not questions:
        raise InputError("there are no questions", path=path, hint=f"a line is {_FORM}")
    return questions


def check_questions(questions: Sequence[Question], path: Path, source: HfCheckpoint) -> None:
    """Refuse what the model cannot be asked.

    Raises:
        InputError: A question is too long, has tokens that the model lacks, or its letters cannot be told apart.
    """
    tokenizer, config = open_tokenizer(source), source.config
    for question in questions:
        prompt, letters = _encoded(tokenizer, question)
        if len({tuple(each) for each in letters}) < len(letters) or not all(letters):
            message = f"line {question.line}: the tokenizer has no letters A to {_LETTERS[len(letters) - 1]}"
            hint = "judge this model by text alone"
            raise InputError(f"{message} that can be told apart", path=path, hint=hint)
        length = len(prompt) + max(map(len, letters)) - 1
        if not prompt or length > config.max_position_embeddings:
            message = f"line {question.line}: the question has {length:,} tokens"
            message += f", the model takes 1 to {config.max_position_embeddings:,}"
            raise InputError(message, path=path, hint="shorten it, or leave it out")
        largest = max(prompt + [token for each in letters for token in each])
        if largest >= config.vocab_size:
            message = f"line {question.line}: the tokenizer gives token {largest}, and the model has "
            hint = "take tokenizer and model from one place"
            raise InputError(f"{message}{config.vocab_size}", path=path, hint=hint)


def _encoded(tokenizer: Any, question: Question) -> tuple[list[int], list[list[int]]]:
    """Return the tokens of the question, and of the letters of its choices."""
    letters = (f" {each}" for each in _LETTERS[: len(question.choices)])
    endings = [list(tokenizer.encode(each, add_special_tokens=False).ids) for each in letters]
    return list(tokenizer.encode(question.prompt).ids), endings


def answers(executor: Executor, tokenizer: Any, questions: Sequence[Question]) -> Iterator[bool]:
    """Yield for each question whether the right letter is likelier than all others; what is no number is not."""
    for question in questions:
        found = _likelihoods(executor, *_encoded(tokenizer, question))
        others = [each for place, each in enumerate(found) if place != question.answer]
        yield bool(np.isfinite(found).all()) and found[question.answer] > max(others)


def _likelihoods(executor: Executor, prompt: list[int], endings: Sequence[list[int]]) -> list[float]:
    """Return the log-likelihood of each ending; endings of one token need one run for all."""
    if all(len(ending) == 1 for ending in endings):
        last = log_softmax(executor.logits(np.array(prompt, np.int64))[-1:])[0]
        return [float(last[ending[0]]) for ending in endings]
    return [_likelihood(executor, prompt, ending) for ending in endings]


def _likelihood(executor: Executor, prompt: list[int], ending: list[int]) -> float:
    tokens = np.array(prompt + ending[:-1], np.int64)
    rows = log_softmax(executor.logits(tokens)[len(prompt) - 1 :])
    return float(rows[np.arange(len(ending)), ending].sum())


def _question(row: dict[str, Any], path: Path, number: int) -> Question:
    question, choices, answer = row.get("question"), row.get("choices"), row.get("answer")
    if why := _lacking(question, choices):
        raise InputError(f"line {number} is no question: {why}", path=path, hint=f"a line is {_FORM}")
    assert isinstance(question, str)  # noqa: S101 - looked at
    assert isinstance(choices, list)  # noqa: S101
    if isinstance(answer, str) and len(answer) == 1:
        answer = _LETTERS.find(answer.upper())
    if type(answer) is not int or not 0 <= answer < len(choices):
        message = f"line {number}: the answer {row.get('answer')!r} is none of {len(choices)} choices"
        raise InputError(message, path=path, hint="give its place from 0, or its letter")
    return Question(question, tuple(choices), answer, number)


def _lacking(question: object, choices: object) -> str:
    """Return why they are no question with choices; empty where they are."""
    if not isinstance(question, str) or not question.strip():
        return "question is no text"
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(_LETTERS):
        return f"choices is no list of 2 to {len(_LETTERS)}"
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        return "a choice is no text"
    if len({choice.strip() for choice in choices}) < len(choices):
        return "two choices are the same"
    return ""
