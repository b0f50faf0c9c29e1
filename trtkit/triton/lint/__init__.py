"""Find what would keep Triton from loading, or a client from using, a model repository: without Triton."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtkit.errors import InputError, Problem
from trtkit.triton.lint.agreement import agreement_problems
from trtkit.triton.lint.files import LINKS, file_problems
from trtkit.triton.lint.model import Model
from trtkit.triton.lint.parameters import parameter_problems
from trtkit.triton.lint.settings import settings_problems
from trtkit.triton.lint.wiring import wiring_problems

_PARAMETER = re.compile(
    r"^[^#\n]*\bparameters\s*:?\s*\[?\s*\{\s*(?:value\s*:?\s*\{[^{}]*\}\s*,?\s*)?key\s*:\s*[\"']([^\"'\n]+)",
    re.MULTILINE,
)


def lint(repo: Path, line: str | None = None, *, linked: bool = True) -> list[Problem]:
    """Return every problem of the repository, whoever wrote it; none means that Triton has no reason to refuse it.

    ``line`` is the release line of TensorRT-LLM that is to serve it; left out, the engine's. Without ``linked``,
    engines and tokenizers need not be in place yet.
    """
    models: dict[str, Model] = {}
    problems: list[Problem] = []
    for path in sorted(repo.glob("*/config.pbtxt")):
        problems += [*_placeholders(path), *_doubled(path)]
        parsed = _parse(path)
        if isinstance(parsed, Problem):
            problems.append(parsed)
        else:
            models[path.parent.name] = Model(path.parent, parsed)
    if not models and not problems:
        return [Problem("no model here", file=str(repo), hint="a model is a folder with a config.pbtxt")]
    built_for = line or next((each.built.line for each in models.values() if each.built), None)
    for model in models.values():
        problems += file_problems(model, repo)
        problems += settings_problems(model)
        problems += parameter_problems(model, built_for)
        problems += wiring_problems(model, models)
    problems += agreement_problems(models, line)
    return [problem for problem in problems if linked or problem.hint != LINKS]


def read_models(repo: Path) -> dict[str, Model]:
    """Return the models of a repository by name.

    Raises:
        InputError: A configuration cannot be read.
    """
    models: dict[str, Model] = {}
    for path in sorted(repo.glob("*/config.pbtxt")):
        parsed = _parse(path)
        if isinstance(parsed, Problem):
            raise InputError(parsed.message, path=path, hint=parsed.hint or "run trtkit repo again")
        models[path.parent.name] = Model(path.parent, parsed)
    return models


def _parse(path: Path) -> Any:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        hint = "fill every ${placeholder}" if "${" in path.read_text() else "see Triton's model_config.proto"
        return Problem(str(error), file=str(path), line=error.GetLine(), hint=hint)
    except UnicodeDecodeError:
        return Problem("not a text file", file=str(path))


def _placeholders(path: Path) -> Iterator[Problem]:
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if "${" in line and not line.lstrip().startswith("#"):
            message = f"unfilled placeholder: {line.strip()}"
            yield Problem(message, file=str(path), line=number, hint="fill it")


def _doubled(path: Path) -> Iterator[Problem]:
    """Find parameters that are there twice: protobuf keeps the last one and says nothing."""
    text = path.read_text(encoding="utf-8", errors="replace")
    for name, times in Counter(_PARAMETER.findall(text)).items():
        if times > 1:
            message = f"{name} is written {times} times, and only the last one counts"
            yield Problem(message, key=f"parameters.{name}", file=str(path), hint="keep one")
