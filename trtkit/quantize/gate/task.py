"""Questions with several answers to choose from: the likeliest letter counts, as for MMLU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtkit.errors import InputError
from trtkit.quantize.gate.executor import Executor
from trtkit.quantize.gate.metrics import log_softmax

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FORM = '{"question": "...", "choices": ["...", "..."], "answer": 0}'


@dataclass(frozen=True)
class Question:
    """One of them; ``answer`` is the place of the right choice."""

    question: str
    choices: tuple[str, ...]
    answer: int

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
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path=path, hint=f"a line is {_FORM}") from error
    questions = tuple(_question(line, path, number) for number, line in enumerate(lines, 1) if line.strip())
    if not questions:
        raise InputError("there are no questions", path=path, hint=f"a line is {_FORM}")
    return questions


def answers(executor: Executor, tokenizer: Any, questions: Sequence[Question]) -> Iterator[bool]:
    """Yield for each question whether the letter of the right choice is the likeliest one; what is no number is not."""
    for question in questions:
        prompt = tokenizer.encode(question.prompt).ids
        letters = [tokenizer.encode(f" {each}", add_special_tokens=False).ids for each in _LETTERS]
        found = _likelihoods(executor, prompt, letters[: len(question.choices)])
        yield bool(np.isfinite(found).all()) and int(np.argmax(found)) == question.answer


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


def _question(line: str, path: Path, number: int) -> Question:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"line {number} is not JSON: {error}", path=path, hint=f"a line is {_FORM}"
        ) from error
    row = row if isinstance(row, dict) else {}
    question, choices = row.get("question"), row.get("choices")
    wrong = InputError(f"line {number} is no question", path=path, hint=f"a line is {_FORM}")
    if not isinstance(question, str) or not isinstance(choices, list):
        raise wrong
    if not 2 <= len(choices) <= len(_LETTERS) or not all(isinstance(choice, str) for choice in choices):
        raise wrong
    answer = row.get("answer")
    if isinstance(answer, str) and len(answer) == 1:
        answer = _LETTERS.find(answer.upper())
    if type(answer) is not int or not 0 <= answer < len(choices):
        message = f"line {number}: the answer {row.get('answer')!r} is none of {len(choices)} choices"
        raise InputError(message, path=path, hint="give its place from 0, or its letter")
    return Question(question, tuple(choices), answer)
