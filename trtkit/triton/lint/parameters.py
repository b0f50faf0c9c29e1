"""Parameters that no back end reads, that it needs, or whose value it would pass over with a warning in a log."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from trtkit.catalog.trtllm import LINES
from trtkit.conventions import BLS_MODEL, POSTPROCESSING_MODEL, PREPROCESSING_MODEL
from trtkit.errors import Problem
from trtkit.triton.generation import (
    ENGINE_PARAMETERS,
    FLAG,
    FRACTION,
    GROUPS,
    INTEGER,
    INTEGERS,
    REMOVED,
    TREE,
    Parameter,
    generation_of,
)
from trtkit.triton.lint.model import Model

_KNOWN = {
    PREPROCESSING_MODEL: (
        "tokenizer_dir add_special_tokens multimodal_model_path visual_model_path gpt_model_path engine_dir "
        "max_num_images hf_model_path tokenizer_type end_ids pad_id"
    ),
    POSTPROCESSING_MODEL: "tokenizer_dir skip_special_tokens tokenizer_type",
    BLS_MODEL: (
        "accumulate_tokens tensorrt_llm_model_name tensorrt_llm_draft_model_name multimodal_encoders_name "
        "tokenizer_dir skip_special_tokens cancellation_check_period_ms max_threads engine_tensor_names "
        "max_draft_tokens"
    ),
}
"""Parameters of the models around the engine: stock ones and trtkit's."""
_KINDS = {
    **dict.fromkeys(("add_special_tokens", "skip_special_tokens", "accumulate_tokens"), FLAG),
    **dict.fromkeys(("pad_id", "max_threads", "max_draft_tokens", "cancellation_check_period_ms"), INTEGER),
    "end_ids": INTEGERS,
}
"""What those of them take that are no text."""
_WORDS = frozenset(["true", "t", "yes", "y", "1", "false", "f", "no", "n", "0"])
"""Flags of Python models, in any case."""
_FLAGS = ("True", "true", "TRUE", "1", "False", "false", "FALSE", "0")
_LIST = r"\d+(, *\d+)*"
_FORMS = {
    INTEGER: r"\d+",
    FRACTION: r"0*1(\.0*)?|0*(\.\d+|0\.?\d*)|\d(\.\d+)?e-\d+",
    INTEGERS: _LIST,
    GROUPS: rf"{_LIST}(; *{_LIST})*",
    TREE: rf"\{{{_LIST}\}}(, *\{{{_LIST}\}})*",
}
"""What the back end's reading of numbers takes whole; of anything else it takes the beginning, or nothing."""
_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


def parameter_problems(model: Model, line: str | None) -> Iterator[Problem]:
    """Check names and values; ``line`` is the engine's release line, None for any."""
    if model.has_engine:
        yield from _engine_names(model, line)
        yield from _engine_values(model)
    elif model.name in _KNOWN and model.config.backend == "python":
        known = _KNOWN[model.name].split()
        yield from (_unknown(model, name, known) for name in model.config.parameters if name not in known)
        yield from _python_values(model)


def _engine_names(model: Model, line: str | None) -> Iterator[Problem]:
    known = generation_of(line).parameters() if line else ENGINE_PARAMETERS
    for name in model.config.parameters:
        key = f"parameters.{name}"
        if name in REMOVED:
            yield model.problem(f"{name} is gone since {REMOVED[name]}", key, "take it out")
        elif name not in ENGINE_PARAMETERS:
            yield _unknown(model, name, known)
        elif name not in known:
            row = ENGINE_PARAMETERS[name]
            hint = f"lines {row.since} to {row.until} have it"
            yield model.problem(f"the back end of TensorRT-LLM {line} has no {name}", key, hint)
    for name, row in ENGINE_PARAMETERS.items():
        if name not in model.config.parameters and row.needed_by(line or _line_by_tensors(model)):
            hint = "add it, with an empty value where it is not used"
            yield model.problem(
                f"{name} is missing, and the back end does not load without it", "parameters", hint
            )


def _line_by_tensors(model: Model) -> str:
    """Return the oldest line that the declared tensors can be of."""
    return "0.19" if any(each.name == "guided_decoding_guide" for each in model.config.input) else LINES[0]


def _unknown(model: Model, name: str, known: Iterable[str]) -> Problem:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else "take it out: nothing reads it"
    return model.problem(f"no parameter of the model is called {name!r}", f"parameters.{name}", hint)


def _engine_values(model: Model) -> Iterator[Problem]:
    for name, row in ENGINE_PARAMETERS.items():
        value = model.text(name)
        if value and "${" not in value and not _is_valid(row, value):
            allowed = f"one of {', '.join(row.choices)}" if row.choices else row.kind
            yield model.problem(f"{name} is {value!r}", f"parameters.{name}", f"it takes {allowed}")
    if model.text("decoding_mode") == "lookahead":
        for name in _LOOKAHEAD:
            if not model.text(name):
                message = f"lookahead decoding does not load without {name}"
                yield model.problem(message, f"parameters.{name}", "give all three sizes")


def _python_values(model: Model) -> Iterator[Problem]:
    for name, kind in _KINDS.items():
        value = model.text(name)
        is_valid = (
            value.lower() in _WORDS if kind == FLAG else re.fullmatch(_FORMS.get(kind, ""), value, re.ASCII)
        )
        if value and "${" not in value and not is_valid:
            yield model.problem(f"{name} is {value!r}", f"parameters.{name}", f"it takes {kind}")


def _is_valid(row: Parameter, value: str) -> bool:
    if row.choices:
        return value in row.choices
    if row.kind == FLAG:
        return value in _FLAGS
    return row.kind not in _FORMS or re.fullmatch(_FORMS[row.kind], value, re.ASCII) is not None
