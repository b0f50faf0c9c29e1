"""What a ModelInferRequest asks for, beyond its tensors."""

from __future__ import annotations

import math
from typing import Any

from trtkit.conventions import SPELL_CODE_PARAMETER
from trtkit.proxy.admission import Reason
from trtkit.proxy.ending import Refusal
from trtkit.proxy.wire.tensors import Tensors

EMPTY_FINAL = "triton_enable_empty_final_response"


def model_name(data: bytes) -> str:
    """Return the model of a serialized ModelInferRequest, as the inference server will read it.

    All of it is parsed, even where it is only passed through: of a field that is there twice the last one counts.
    """
    return str(parse(data).model_name)


def parse(data: bytes) -> Any:
    """Parse a serialized ModelInferRequest."""
    from google.protobuf.message import DecodeError
    from tritonclient.grpc import service_pb2

    try:
        return service_pb2.ModelInferRequest.FromString(data)
    except DecodeError as error:
        raise Refusal(Reason.INVALID_INPUT, "the request is no ModelInferRequest") from error


class LlmRequest:
    """A request for one of the LLM models; the proxy's own parameters are taken out when it is read."""

    def __init__(self, data: bytes) -> None:
        self.message = parse(data)
        self.model: str = self.message.model_name
        self.client_id: str = self.message.id
        self.priority = self._take_integer("priority")
        self.timeout_s = self._take_integer("timeout") / 1e6 or math.inf
        self.wants_empty_final = self.message.parameters[EMPTY_FINAL].bool_param
        self.message.parameters[EMPTY_FINAL].bool_param = True
        self.message.parameters[SPELL_CODE_PARAMETER].bool_param = True
        self.tensors = Tensors(self.message)

    @property
    def is_stop(self) -> bool:
        """Whether the request only cancels another one."""
        return "stop" in self.tensors and bool(self.tensors.number("stop"))

    def prompt_width(self) -> int:
        """Return the prompt's tokens as ``input_lengths`` (else the width of ``input_ids``) says."""
        width = self.tensors.shape("input_ids")[-1] if "input_ids" in self.tensors else 0
        if "input_lengths" not in self.tensors:
            return width
        length = self.tensors.number("input_lengths")
        if length < 0 or ("input_ids" in self.tensors and length > width):
            raise Refusal(
                Reason.INVALID_INPUT, f"input 'input_lengths' is {length}, 'input_ids' has {width} tokens"
            )
        return length

    def address(self, upstream_id: str) -> bytes:
        """Serialize the request under the id that the inference server is to know it by."""
        self.message.id = upstream_id
        return bytes(self.message.SerializeToString())

    def _take_integer(self, name: str) -> int:
        if name not in self.message.parameters:
            return 0
        parameter = self.message.parameters.pop(name)
        kind = parameter.WhichOneof("parameter_choice")
        value = getattr(parameter, kind) if kind in ("int64_param", "uint64_param") else -1
        if value < 0:
            raise Refusal(Reason.INVALID_INPUT, f"parameter '{name}' must be an integer of 0 or more")
        return int(value)
