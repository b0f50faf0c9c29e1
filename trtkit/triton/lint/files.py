"""Files that a model needs, and where its tokenizer is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from trtkit.conventions import BLS_MODEL, POSTPROCESSING_MODEL, PREPROCESSING_MODEL
from trtkit.errors import Problem
from trtkit.triton.lint.model import TENSORRT, Model

_TOKENIZER = "parameters.tokenizer_dir"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
LINKS = "trtkit build links engine and tokenizer there, and so does trtkit repo --engine"
"""The fix where only that is missing."""
_NEEDED = {
    PREPROCESSING_MODEL: ("python",),
    POSTPROCESSING_MODEL: ("python",),
    BLS_MODEL: ("python",),
}


def file_problems(model: Model, root: Path) -> Iterator[Problem]:
    """Check name, versions, back end, and what the parameters point to."""
    config = model.config
    if config.name and config.name != model.name:
        message = f"name is {config.name!r}, the folder is {model.name!r}"
        yield model.problem(message, "name", "make them equal")
    yield from _backend(model)
    if not model.versions:
        yield Problem("no version directory", file=str(model.folder), hint=f"mkdir {model.folder / '1'}")
        return
    for version in model.versions:
        yield from _sources(model, version)
    yield from _engine(model)
    yield from _tokenizer(model, root)


def _backend(model: Model) -> Iterator[Problem]:
    config = model.config
    if config.backend and config.platform:
        yield model.problem("has a back end and a platform", "platform", "keep one of them")
    if model.name in _NEEDED and config.backend not in _NEEDED[model.name]:
        message = f"the model runs in back end python, not in {config.backend or config.platform or 'none'!r}"
        yield model.problem(message, "backend", 'write backend: "python"')
    elif not config.backend and not config.platform:
        yield model.problem("has no back end", "backend", "say who runs it: python, tensorrtllm, vllm")
    elif config.backend in {"tensorrt", "tensorrt_llm", "trtllm"}:
        message = f"back end {config.backend!r} does not run engines of TensorRT-LLM"
        yield model.problem(message, "backend", f'write backend: "{TENSORRT}"')
    elif model.has_engine and config.backend not in {TENSORRT, "python"}:
        message = f"back end {config.backend or config.platform!r} does not run engines of TensorRT-LLM"
        yield model.problem(message, "backend", f'write backend: "{TENSORRT}"')


def _sources(model: Model, version: Path) -> Iterator[Problem]:
    backend = model.config.backend
    source = version / (model.config.default_model_filename or "model.py")
    if backend == "python" and not source.is_file():
        yield Problem(f"{source.name} is missing", file=str(version), hint="run trtkit repo again")
    if backend == "vllm" and not (version / "model.json").is_file():
        yield Problem("model.json is missing", file=str(version), hint="run trtkit repo again")


def _engine(model: Model) -> Iterator[Problem]:
    key = "parameters.gpt_model_path"
    if not model.has_engine:
        return
    if not (model.text("gpt_model_path") or model.text("encoder_model_path")):
        yield model.problem("there is no path of an engine", key, "say where it is")
    place, given = model.place("gpt_model_path"), model.text("gpt_model_path")
    if model.config.backend == TENSORRT and place and not given.startswith("/"):
        message = f"{given!r} is relative, and the back end resolves no relative path"
        yield model.problem(message, key, "write the path that the server sees, from the root")
    if place is None:
        return
    if not place.is_dir():
        yield model.problem(f"{place} does not exist", key, LINKS)
    elif model.config.backend == TENSORRT and not (place / "config.json").is_file():
        yield model.problem(f"no config.json in {place}", key, LINKS)
    elif model.config.backend == TENSORRT and model.built is not None:
        ranks = [f"rank{rank}.engine" for rank in range(model.built.world)]
        weights = [name.replace(".engine", "_managed_weights.safetensors") for name in ranks]
        wanted = ranks + (weights if model.built.managed_weights else [])
        lost = [name for name in wanted if not (place / name).is_file()]
        more = sorted(path.name for path in place.glob("rank*.engine") if path.name not in ranks)
        if lost:
            yield model.problem(f"{', '.join(lost)} missing in {place}", key, "build the engine again")
        if more:
            message = f"{', '.join(more)} in {place}, whose config.json says {model.built.world} ranks"
            yield model.problem(
                message, key, "remove what another build left there, or build the engine again"
            )
    info = model.place("xgrammar_tokenizer_info_path")
    if info is not None and not info.is_file():
        yield model.problem(f"{info} does not exist", "parameters.xgrammar_tokenizer_info_path", "make it")


def _tokenizer(model: Model, root: Path) -> Iterator[Problem]:
    value = model.text("tokenizer_dir")
    if not value and model.name in {PREPROCESSING_MODEL, POSTPROCESSING_MODEL}:
        yield model.problem("there is no tokenizer", _TOKENIZER, "say where its folder is")
    place = model.place("tokenizer_dir")
    if place is None:
        return
    if not place.is_dir():
        hub = _HUB.fullmatch(value) is not None
        message = (
            f"{value!r} looks like a name on a hub, which is never asked"
            if hub
            else f"{place} does not exist"
        )
        yield model.problem(message, _TOKENIZER, "give a local folder" if hub else LINKS)
    elif not value.startswith("/") and not _is_ours(model):
        message = f"{value!r} is relative to wherever the server is started"
        yield model.problem(message, _TOKENIZER, "write the path that the server sees, from the root")
    elif _is_loose(place, root):
        message = f"{place} is a folder of the repository itself: Triton takes it for a model"
        yield model.problem(message, _TOKENIZER, f"move it below {model.folder / '1'}")
    elif not any((place / name).is_file() for name in _wanted(model)):
        yield model.problem(f"no {_wanted(model)[0]} in {place}", _TOKENIZER, LINKS)


def _wanted(model: Model) -> tuple[str, ...]:
    """Return the files of which a tokenizer needs one; trtkit's own models read the first kind only."""
    return _TOKENIZER_FILES[:1] if _is_ours(model) else _TOKENIZER_FILES


def _is_ours(model: Model) -> bool:
    """Tell whether trtkit wrote the model's code, which finds what is in its version directory."""
    is_ours = any((version / "trtkit_text.py").is_file() for version in model.versions)
    return is_ours or model.config.backend == TENSORRT


def _is_loose(place: Path, root: Path) -> bool:
    """Tell whether a folder is in the repository and in no version directory."""
    place, root = (Path(os.path.normpath(path.absolute())) for path in (place, root))
    if not place.is_relative_to(root):
        return False
    parts = place.relative_to(root).parts
    return len(parts) < 3 or not parts[1].isdigit()
