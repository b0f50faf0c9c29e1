"""What vLLM takes as JSON: the length of the answer among its sampling parameters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from trtkit.conventions import SPELL_CODE_PARAMETER
from trtkit.proxy.admission import Reason
from trtkit.proxy.ending import Refusal

if TYPE_CHECKING:
    from trtkit.proxy.wire.request import LlmRequest
    from trtkit.proxy.wire.schema import ModelSchema

SAMPLING = "sampling_parameters"
_LENGTH = "max_tokens"
_ANSWERS = ("n", "best_of")
_TRITONS_OWN = ("triton_", "sequence_", SPELL_CODE_PARAMETER)
"""Request parameters that begin so are none of sampling."""


class JsonLength:
    """``max_tokens`` in the JSON of ``sampling_parameters``, or among the request's parameters, which that replaces."""

    name = f"{_LENGTH} of '{SAMPLING}'"

    def read(self, call: LlmRequest) -> int | None:
        """Return it in tokens, None where the request leaves it out.

        Raises:
            Refusal: The JSON is none, or asks for several answers: they would take as many slots and blocks.
        """
        settings = read_settings(call)
        for name in _ANSWERS:
            if (_integer(settings, name) or 1) > 1:
                _refuse(f"{name} of '{SAMPLING}' is {settings[name]}: send one request for each answer")
        return _integer(settings, _LENGTH)

    def write(self, call: LlmRequest, schema: ModelSchema, tokens: int) -> None:
        """Set it, whether or not the request has it; parameters move to the JSON, which is read instead."""
        text = json.dumps({**read_settings(call), _LENGTH: tokens}).encode()
        if SAMPLING in call.tensors:
            call.tensors.set_text(SAMPLING, text)
        else:
            call.tensors.add_text(SAMPLING, schema.shape_of_one(), text)


def read_settings(call: LlmRequest) -> dict[str, Any]:
    """Return the sampling parameters of a request.

    Raises:
        Refusal: They are no JSON object, or say one thing twice.
    """
    if SAMPLING not in call.tensors:
        return _parameters(call)
    try:
        settings: Any = json.loads(call.tensors.text(SAMPLING), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        _refuse(f"input '{SAMPLING}' is no JSON: {error}")
    if not isinstance(settings, dict):
        _refuse(f"input '{SAMPLING}' is no JSON object")
    for name in (_LENGTH, *_ANSWERS):
        if settings.get(name) is None and name in _parameters(call):
            _refuse(f"parameter '{name}' is not read where input '{SAMPLING}' is given: put it there")
    return settings


def _parameters(call: LlmRequest) -> dict[str, Any]:
    return {
        name: getattr(each, each.WhichOneof("parameter_choice") or "string_param")
        for name, each in call.message.parameters.items()
        if not name.startswith(_TRITONS_OWN)
    }


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise ValueError("a name is there twice")
    return settings


def _integer(settings: dict[str, Any], name: str) -> int | None:
    """Return a number; clients of vLLM write it as a string too."""
    value = settings.get(name)
    if value is None:
        return None
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19
    if not digits and (isinstance(value, bool) or not isinstance(value, int)):
        _refuse(f"{name} of '{SAMPLING}' is {str(value)[:64]!r}, it must be an integer")
    return int(value)


def _refuse(problem: str) -> NoReturn:
    raise Refusal(Reason.INVALID_INPUT, problem)
