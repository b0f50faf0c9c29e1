"""Reading and rewriting real protobufs, raw and typed; bounds before tokenizing."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tritonclient.grpc import service_pb2

from tests.proxy.conftest import LIMITS, infer_request, text_inputs, token_inputs
from tests.proxy.fake_triton import TEXT, TOKENS, model_config
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import Reason
from trtkit.proxy.ending import Ending, Refusal
from trtkit.proxy.intake import add_default_output, measure
from trtkit.proxy.wire import dialect
from trtkit.proxy.wire.failure import read_error
from trtkit.proxy.wire.prompt import PromptCounter
from trtkit.proxy.wire.request import LlmRequest, model_name
from trtkit.proxy.wire.response import Chunk, error_chunk, stop_request
from trtkit.proxy.wire.schema import read_schema
from trtkit.proxy.wire.tensors import Tensors

PLAIN = ServiceClass(priority=1)


def typed_request(text=b"hello", max_tokens=7):
    request = service_pb2.ModelInferRequest(model_name="ensemble", id="x")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(text)
    if max_tokens is not None:
        tensor = request.inputs.add(name="max_tokens", datatype="INT32", shape=[1, 1])
        tensor.contents.int_contents.append(max_tokens)
    return request.SerializeToString()


@pytest.mark.parametrize(
    "data", [typed_request(), infer_request("ensemble", text_inputs("hello", 7, stream=None))]
)
def test_values_are_read_and_rewritten_whether_raw_or_typed(data):
    call = LlmRequest(data)
    assert call.tensors.text("text_input") == b"hello"
    assert call.tensors.number("max_tokens") == 7
    call.tensors.set_number("max_tokens", 3)
    again = LlmRequest(call.address("new"))
    assert again.tensors.number("max_tokens") == 3
    assert again.client_id == "new"


@pytest.mark.parametrize(
    "data",
    [typed_request(max_tokens=None), infer_request("ensemble", text_inputs("hello", None, stream=None))],
)
async def test_a_missing_max_tokens_is_added_in_the_manner_of_the_request(data):
    call, schema = LlmRequest(data), read_schema(model_config("ensemble", TEXT), decoupled=True)
    assert add_default_output(call, PLAIN, schema)
    schema.check(call.message)
    size = await measure(call, schema, PLAIN, lambda _: LIMITS, PromptCounter(None))
    assert (size.max_tokens, size.clipped) == (128, False)
    assert LlmRequest(call.address("x")).tensors.number("max_tokens") == 128


def test_a_model_whose_answers_have_no_length_is_refused():
    call = LlmRequest(typed_request(max_tokens=None))
    schema = read_schema(model_config("ensemble", {"text_input": ("STRING", False)}), decoupled=True)
    with pytest.raises(Refusal, match="inputs text_input are those of no model that the proxy can admit"):
        add_default_output(call, PLAIN, schema)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda r: r.inputs.add(name="seed", datatype="UINT64", shape=[1, 1]), "unexpected input 'seed'"),
        (lambda r: r.inputs.pop(1), "input 'max_tokens' is missing"),
        (lambda r: setattr(r.inputs[1], "datatype", "INT64"), "input 'max_tokens' is INT64, expected INT32"),
        (lambda r: r.inputs[0].shape.__setitem__(0, 2), "input 'text_input' has batch size 2"),
        (lambda r: r.inputs[0].shape.append(1), r"'text_input' has shape \[1, 1, 1\], expected \[1, 1\]"),
    ],
)
def test_each_kind_of_misfit_names_its_tensor(change, problem):
    request = service_pb2.ModelInferRequest.FromString(typed_request())
    change(request)
    schema = read_schema(model_config("ensemble", TEXT), decoupled=True)
    with pytest.raises(Refusal, match=problem):
        schema.check(request)


@pytest.mark.parametrize(
    "raw", [b"", b"\x01", struct.pack("<I", 99) + b"short"], ids=["empty", "no length", "cut off"]
)
def test_unreadable_contents_are_refused_by_name(raw):
    request = service_pb2.ModelInferRequest.FromString(infer_request("ensemble", text_inputs("a")))
    request.raw_input_contents[0] = raw
    with pytest.raises(Refusal, match="input 'text_input' has no readable contents"):
        Tensors(request).text("text_input")


@given(st.binary(max_size=200))
def test_no_bytes_whatsoever_do_more_than_refuse(data):
    assert reason_of(data) in (None, Reason.INVALID_INPUT)


@pytest.mark.parametrize("spoken", [dialect.TOKENS, dialect.TEXT])
def test_several_answers_to_one_request_are_refused_by_name(spoken):
    def check(count):
        request = service_pb2.ModelInferRequest.FromString(infer_request("ensemble", text_inputs("a")))
        request.inputs.add(name="num_return_sequences", datatype="INT32", shape=[1, 1])
        request.raw_input_contents.append(struct.pack("<i", count))
        spoken.check(Tensors(request))

    check(1)
    with pytest.raises(Refusal, match="'num_return_sequences' is refused"):
        check(8)


def test_of_a_name_that_is_there_twice_the_one_counts_that_the_server_reads():
    data = b"\x0a\x05other" + infer_request("ensemble", text_inputs("a"))
    assert model_name(data) == LlmRequest(data).model == "ensemble"


def reason_of(data):
    try:
        model_name(data)
        LlmRequest(data)
    except Refusal as refusal:
        return refusal.ending.reason
    return None


def test_a_declared_length_beyond_the_ids_is_refused():
    inputs = token_inputs([1, 2, 3])
    inputs[1].set_data_from_numpy(np.array([[4]], np.int32))
    with pytest.raises(Refusal, match="'input_lengths' is 4, 'input_ids' has 3"):
        LlmRequest(infer_request("tensorrt_llm", inputs)).prompt_width()


@given(st.text(alphabet="ab \n\u00e9\u4e2d\U0001f600", max_size=60))
def test_the_bound_never_exceeds_the_count(text):
    counter = PromptCounter(TRAINED)
    assert counter.at_least(text.encode()) <= counter._encode(text.encode())


def _trained():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["ab ab aab  abab \u4e2d\u4e2d \u00e9\u00e9"] * 9, trainer)
    return tokenizer


TRAINED = _trained()


async def test_a_long_text_counts_the_same_off_the_loop():
    counter = PromptCounter(TRAINED)
    text = b"ab " * 3000
    assert await counter.count(text) == len(TRAINED.encode(text.decode()).ids)


def test_tokens_are_counted_by_sequence_length_where_there_is_one():
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.outputs.add(name="output_ids", datatype="INT32", shape=[1, 1, 3])
    response.outputs.add(name="sequence_length", datatype="INT32", shape=[1, 1])
    response.raw_output_contents.extend([struct.pack("<3i", 1, 2, 3), struct.pack("<i", 3)])
    assert Chunk(message.SerializeToString(), len).tokens == 3


def test_of_several_beams_the_longest_counts_and_without_lengths_the_shape():
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="sequence_length", datatype="INT32", shape=[1, 3])
    message.infer_response.raw_output_contents.append(struct.pack("<3i", 5, 9, 7))
    assert Chunk(message.SerializeToString(), len).tokens == 9
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="output_ids", datatype="INT32", shape=[1, 1, 6])
    message.infer_response.raw_output_contents.append(struct.pack("<6i", *range(6)))
    assert Chunk(message.SerializeToString(), len).tokens == 6


def test_text_is_measured_where_there_is_no_sequence_length():
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
    message.infer_response.raw_output_contents.append(struct.pack("<i", 4) + b"abcd")
    assert Chunk(message.SerializeToString(), len).tokens == 4


def test_reading_a_chunk_changes_nothing_of_it_but_the_id():
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
    addressed = Chunk(message.SerializeToString(), len).address("mine")
    message.infer_response.id = "mine"
    assert service_pb2.ModelStreamInferResponse.FromString(addressed) == message


def test_an_in_band_error_says_code_reason_and_pushback():
    data = error_chunk("mine", "ensemble", Ending(Reason.QUEUE_FULL, pushback_ms=120))
    message = service_pb2.ModelStreamInferResponse.FromString(data)
    assert message.error_message == "[RESOURCE_EXHAUSTED] queue_full: the queue is full"
    parameters = message.infer_response.parameters
    assert message.infer_response.id == "mine"
    assert parameters["trtkit_reason"].string_param == "queue_full"
    assert parameters["trtkit_retry_pushback_ms"].int64_param == 120
    assert parameters["triton_final_response"].bool_param


def test_a_stop_request_fits_the_engine_model():
    schema = read_schema(model_config("tensorrt_llm", TOKENS), decoupled=True)
    request = service_pb2.ModelInferRequest.FromString(stop_request(schema, "x"))
    schema.check(request)
    assert Tensors(request).number("stop") == 1


@pytest.mark.parametrize(
    ("text", "reason", "status", "detail"),
    [
        (
            "in ensemble 'ensemble', INVALID_ARG: the prompt is empty",
            "invalid_input",
            "INVALID_ARGUMENT",
            "the prompt is empty",
        ),
        (
            "CANCELLED: request cancelled by client",
            "upstream_error",
            "CANCELLED",
            "request cancelled by client",
        ),
        (
            "[request id: x] Maximum queue size of 8 has been reached",
            "upstream_error",
            "RESOURCE_EXHAUSTED",
            "of 8",
        ),
        ("Request for unknown model: 'x' is not found", "upstream_error", "NOT_FOUND", "'x'"),
        ("Stub process 'llm_0_0' is not healthy.", "no_backend", "UNAVAILABLE", "llm_0_0"),
        ("Request for unknown model: 'x' has no available versions", "no_backend", "UNAVAILABLE", "'x'"),
        ("unexpected shape for input 'x'", "invalid_input", "INVALID_ARGUMENT", "'x'"),
        ("Executor failed process requestId 7", "upstream_error", "INTERNAL", "requestId 7"),
    ],
)
def test_the_text_of_an_in_band_error_tells_its_status(text, reason, status, detail):
    ending = read_error(text)
    assert (ending.reason.value, ending.status) == (reason, status)
    assert detail in ending.detail
    assert "INVALID_ARG:" not in ending.detail
