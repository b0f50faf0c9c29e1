"""Find what would keep Triton from loading, or a client from using, a model repository: without Triton."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtkit.conventions import BLS_MODEL, ENGINE_MODEL
from trtkit.errors import Problem, Severity

PATH_PARAMETERS = ("gpt_model_path", "tokenizer_dir")


def lint(repo: Path) -> list[Problem]:
    """Return every problem of the repository; none means that Triton has no reason to refuse it."""
    configs: dict[str, Any] = {}
    problems: list[Problem] = []
    for path in sorted(repo.glob("*/config.pbtxt")):
        parsed = _parse(path)
        if isinstance(parsed, Problem):
            problems.append(parsed)
        else:
            configs[path.parent.name] = parsed
    if not configs and not problems:
        return [Problem("no model here", file=str(repo), hint="a model is a folder with a config.pbtxt")]
    for folder, config in configs.items():
        problems += _placeholders(repo / folder)
        problems += _layout(repo / folder, config)
        problems += _steps(repo / folder, config, configs)
    return [*problems, *_decoupling(repo, configs), *_instances(repo, configs)]


def _parse(path: Path) -> Any:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        hint = "fill every ${placeholder}" if "${" in path.read_text() else "see Triton's model_config.proto"
        return Problem(str(error), file=str(path), line=error.GetLine(), hint=hint)
    except UnicodeDecodeError:
        return Problem("not a text file", file=str(path))


def _placeholders(folder: Path) -> Iterator[Problem]:
    path = folder / "config.pbtxt"
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if "${" in line and not line.lstrip().startswith("#"):
            yield Problem(
                f"unfilled placeholder: {line.strip()}", file=str(path), line=number, hint="fill it"
            )


def _layout(folder: Path, config: Any) -> Iterator[Problem]:
    file = str(folder / "config.pbtxt")
    if config.name and config.name != folder.name:
        yield Problem(
            f"name is {config.name!r}, the folder is {folder.name!r}",
            key="name",
            file=file,
            hint="make them equal",
        )
    versions = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
    if not versions:
        yield Problem("no version directory", file=str(folder), hint=f"mkdir {folder / '1'}")
    for version in versions:
        yield from _version(version, config, file)


def _version(version: Path, config: Any, file: str) -> Iterator[Problem]:
    if config.backend == "python" and not (version / (config.default_model_filename or "model.py")).is_file():
        yield Problem("model.py is missing", file=str(version), hint="run trtkit repo again")
    for key in PATH_PARAMETERS:
        value = config.parameters[key].string_value if key in config.parameters else ""
        if value.startswith("/"):
            continue  # a path inside the container
        if value and not (version / value).is_dir():
            yield Problem(
                f"{version / value} does not exist",
                key=f"parameters.{key}",
                file=file,
                hint="place it there: trtkit repo links engine and tokenizer",
            )
        elif value and key == "tokenizer_dir" and not (version / value / "tokenizer.json").is_file():
            yield Problem(f"no tokenizer.json in {version / value}", key=f"parameters.{key}", file=file)


def _steps(folder: Path, config: Any, configs: dict[str, Any]) -> Iterator[Problem]:
    """Check that every tensor of every step exists and that both ends of a name agree on the data type."""
    file = str(folder / "config.pbtxt")
    known = {tensor.name: tensor.data_type for tensor in (*config.input, *config.output)}
    for number, step in enumerate(config.ensemble_scheduling.step):
        key = f"ensemble_scheduling.step[{number}]"
        model = configs.get(step.model_name)
        if model is None:
            yield Problem(
                f"there is no model {step.model_name!r}", key=key, file=file, hint="add or rename it"
            )
            continue
        for side, mapping, declared in (
            ("input", step.input_map, model.input),
            ("output", step.output_map, model.output),
        ):
            types = {tensor.name: tensor.data_type for tensor in declared}
            for name, outer in sorted(mapping.items()):
                if name not in types:
                    yield Problem(f"model {step.model_name!r} has no {side} {name!r}", key=key, file=file)
                elif known.setdefault(outer, types[name]) != types[name]:
                    yield Problem(
                        f"{outer!r} and {step.model_name}.{name} differ in data type", key=key, file=file
                    )


def _decoupling(repo: Path, configs: dict[str, Any]) -> Iterator[Problem]:
    pair = [configs[name] for name in (ENGINE_MODEL, BLS_MODEL) if name in configs]
    if len({config.model_transaction_policy.decoupled for config in pair}) > 1:
        yield Problem(
            f"{ENGINE_MODEL} and {BLS_MODEL} disagree",
            key="model_transaction_policy.decoupled",
            file=str(repo),
            hint="streaming needs true in both",
        )


def _instances(repo: Path, configs: dict[str, Any]) -> Iterator[Problem]:
    for name in ("preprocessing", "postprocessing"):
        if name in configs and sum(group.count for group in configs[name].instance_group) == 1:
            yield Problem(
                f"{name} has one instance: parallel requests are tokenized one after another",
                key="instance_group.count",
                file=str(repo / name / "config.pbtxt"),
                hint="set count: 2",
                severity=Severity.WARNING,
            )
