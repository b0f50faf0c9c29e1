"""What a response says, and the responses that the proxy writes itself."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from trtkit.proxy.ending import Ending
from trtkit.proxy.wire.schema import ModelSchema

FINAL = "triton_final_response"
REASON_PARAMETER = "trtkit_reason"
PUSHBACK_PARAMETER = "trtkit_retry_pushback_ms"
CLIPPED_PARAMETER = "trtkit_max_tokens_clipped"
_LENGTH = struct.Struct("<i")
_ONE = {
    "BOOL": b"\x01",
    "INT32": struct.pack("<i", 1),
    "INT64": struct.pack("<q", 1),
    "BYTES": struct.pack("<I", 0),
}
"""The contents of tensors of one element."""

Measure = Callable[[bytes], int]


class Chunk:
    """One ModelStreamInferResponse of an LLM model; ``measure`` tells the tokens of a piece of text."""

    def __init__(self, data: bytes, measure: Measure) -> None:
        from tritonclient.grpc import service_pb2

        self.message: Any = service_pb2.ModelStreamInferResponse.FromString(data)
        self._response = self.message.infer_response
        self.error: str = self.message.error_message
        parameters = self._response.parameters
        self.final: bool = FINAL in parameters and parameters[FINAL].bool_param
        self.tokens = count_tokens(self._response, measure)
        self.empty = not self._response.outputs

    def address(self, client_id: str, clipped_to: int | None = None) -> bytes:
        """Serialize the chunk under the client's own id."""
        self._response.id = client_id
        if clipped_to is not None:
            self._response.parameters[CLIPPED_PARAMETER].int64_param = clipped_to
        return bytes(self.message.SerializeToString())


def count_tokens(response: Any, measure: Measure) -> int:
    """Return the tokens in a ModelInferResponse: ``sequence_length`` says it, text has to be measured.

    A client that asks for ``output_ids`` alone, ``(batch, beams, tokens)``, gets no more than its shape.
    """
    raw = {
        output.name: content
        for output, content in zip(response.outputs, response.raw_output_contents, strict=False)
    }
    if len(lengths := raw.get("sequence_length", b"")) >= _LENGTH.size:
        # Of several beams each has its own; the longest took the time.
        whole = lengths[: len(lengths) // _LENGTH.size * _LENGTH.size]
        return max(int(length) for (length,) in _LENGTH.iter_unpack(whole))
    if len(text := raw.get("text_output", b"")) >= _LENGTH.size:
        return measure(text[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(text)[0]])
    ids = next((output for output in response.outputs if output.name == "output_ids" and output.shape), None)
    if ids is not None:
        return int(ids.shape[-1])
    return 1 if response.outputs else 0


def error_chunk(client_id: str, model: str, ending: Ending) -> bytes:
    """Write an in-band error: ``[CODE] reason: text``, with the same facts as parameters."""
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelStreamInferResponse(error_message=f"[{ending.status}] {ending.message}")
    response = message.infer_response
    response.id, response.model_name = client_id, model
    response.parameters[FINAL].bool_param = True
    response.parameters[REASON_PARAMETER].string_param = ending.reason.value
    if ending.pushback_ms is not None:
        response.parameters[PUSHBACK_PARAMETER].int64_param = ending.pushback_ms
    return bytes(message.SerializeToString())


def empty_final(client_id: str, model: str) -> bytes:
    """Write the empty final response of a stream."""
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.id, message.infer_response.model_name = client_id, model
    message.infer_response.parameters[FINAL].bool_param = True
    return bytes(message.SerializeToString())


def readdress(data: bytes, client_id: str, measure: Measure) -> tuple[bytes, int]:
    """Give a serialized ModelInferResponse the client's id; return it with its number of tokens."""
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse.FromString(data)
    response.id = client_id
    return bytes(response.SerializeToString()), count_tokens(response, measure)


def stop_request(schema: ModelSchema, upstream_id: str) -> bytes:
    """Write the request that makes the engine drop ``upstream_id``.

    The inputs beside ``stop`` say nothing, but Triton insists on them.
    """
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=schema.name, id=upstream_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, declared in schema.inputs.items():
        if name == "stop" or not declared.optional:
            request.inputs.add(name=name, datatype=declared.datatype, shape=schema.shape_of_one())
            request.raw_input_contents.append(_ONE[declared.datatype])
    return bytes(request.SerializeToString())
