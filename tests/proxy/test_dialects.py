"""The proxy before a real Triton whose models speak as vLLM and TensorRT-LLM's Python API do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import struct
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as sync_triton
import tritonclient.grpc.aio as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.engine.llmapi.conftest import plan_of  # noqa: F401 - a fixture
from tests.engine.llmapi.test_model import STAND_IN
from tests.proxy.conftest import stream, timed
from tests.proxy.fake_triton import model_config, read_int32, text_chunk
from trtkit.errors import EnvironmentLacks
from trtkit.proxy.ending import Refusal
from trtkit.proxy.wire.dialect import DIALECTS, LLMAPI, TEXT, TOKENS, VLLM, dialect_of
from trtkit.proxy.wire.meter import TextMeter
from trtkit.proxy.wire.prompt import PromptCounter
from trtkit.proxy.wire.request import LlmRequest
from trtkit.proxy.wire.sampling import JsonLength
from trtkit.proxy.wire.schema import Input, ModelSchema
from trtkit.triton import llmapi, vllm
from trtkit.triton.folder import write
from trtkit.triton.repository import render
from trtkit.triton.server import TritonServer

VLLM_MODEL, LLMAPI_MODEL = "vllm", "tensorrt_llm"
# It writes down what reaches the engine, as vLLM's stand-in does.
DIARY = """
_generate, _abort = LLM.generate_async, Running.abort


def note(event, running):
    import json
    from pathlib import Path

    sampling = {"max_tokens": running.sampling.max_tokens}
    with (Path(__file__).parent / "events.jsonl").open("a") as diary:
        diary.write(json.dumps({"event": event, "prompt": running.prompt, "sampling": sampling}) + "\\n")


def generate(self, *args, **named):
    running = _generate(self, *args, **named)
    note("start", running)
    return running


def abort(self):
    note("cancel", self)
    _abort(self)


LLM.generate_async, Running.abort = generate, abort
"""


@dataclasses.dataclass
class Real:
    """A running Triton, and what its models wrote down."""

    address: str
    repo: Path

    async def event(self, kind, prompt, within_s=20.0) -> dict:
        end_s = time.monotonic() + within_s
        while not (found := self._events(kind, prompt)):
            assert time.monotonic() < end_s, f"no {kind} of {prompt}"
            await asyncio.sleep(0.01)
        return found[-1]["sampling"]

    def _events(self, kind, prompt):
        lines = [line for file in self.repo.rglob("events.jsonl") for line in file.read_text().splitlines()]
        return [each for each in map(json.loads, lines) if (each["event"], each["prompt"]) == (kind, prompt)]


@pytest.fixture(scope="module")
def real(tmp_path_factory, plan_of):  # noqa: F811
    folder = tmp_path_factory.mktemp("dialects")
    repo = folder / "repo"
    write(render(plan_of("llmapi")), repo)
    (repo / LLMAPI_MODEL / "1" / "tensorrt_llm.py").write_text(STAND_IN + DIARY)
    shutil.copytree(Path(__file__).parent / "dialects" / VLLM_MODEL, repo / VLLM_MODEL)
    try:
        server = TritonServer(repo, log_file=folder / "log")
    except EnvironmentLacks as lack:
        pytest.skip(str(lack))
    with server:
        server.wait_ready(60, probe=lambda *_: None)
        yield Real(server.grpc_address, repo)


@pytest.fixture
async def front(real, serve):
    return await serve(real.address)


def inputs_of(**values):
    inputs = []
    for name, value in values.items():
        kinds = {str: object, int: np.int32, bool: bool}
        array = np.array([value.encode() if isinstance(value, str) else value], kinds[type(value)])
        inputs.append(sync_triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs


async def ask(front, model, headers=None, parameters=None, **values):
    """Return the texts of one answer."""
    request = {"model_name": model, "inputs": inputs_of(**values), "parameters": parameters}
    texts = []
    async for result, error in stream(front.address, request, headers=headers):
        if error is not None:
            raise error
        if (output := result.as_numpy("text_output")) is not None:
            texts.append(output.reshape(-1)[0].decode())
    return texts


def length_of(model, tokens):
    if model == VLLM_MODEL:
        return {"stream": True, "sampling_parameters": json.dumps({"max_tokens": tokens})}
    return {"streaming": True, "sampling_param_max_tokens": tokens}


both = pytest.mark.parametrize("model", [VLLM_MODEL, LLMAPI_MODEL])


@both
async def test_a_stream_is_admitted_and_its_tokens_and_first_token_are_counted(front, model):
    assert len(await ask(front, model, text_input="xyz", **length_of(model, 7))) == 7
    label = model if model == LLMAPI_MODEL else "other"
    assert await front.metric("requests_total", model=label, reason="ok") == 1
    assert await front.metric("output_tokens_total", model=label) == 7
    assert await front.metric("time_to_first_token_seconds_count", model=label) == 1


@both
async def test_an_answer_without_a_length_gets_that_of_its_class(real, front, model):
    await ask(front, model, text_input="without length")
    assert (await real.event("start", "without length"))["max_tokens"] == 16


@both
async def test_a_longer_answer_than_its_class_has_is_clipped_at_the_engine(real, front, model):
    assert len(await ask(front, model, text_input="long", **length_of(model, 5000))) == 64
    assert (await real.event("start", "long"))["max_tokens"] == 64


async def test_the_whole_answer_counts_without_the_prompt_that_comes_back(front):
    sampling = json.dumps({"max_tokens": "5"})
    assert await ask(front, VLLM_MODEL, text_input="prompt ", sampling_parameters=sampling) == [
        "prompt abcde"
    ]
    assert await front.metric("output_tokens_total", model="other") == 5


async def test_parameters_of_a_request_are_sampling_parameters(real, front):
    given = {"max_tokens": "9999", "temperature": "0.5"}
    await ask(front, VLLM_MODEL, parameters=given, text_input="by parameters", stream=True)
    assert await real.event("start", "by parameters") == {"max_tokens": 64, "temperature": "0.5"}


@both
async def test_a_gone_client_is_aborted_at_the_engine(real, front, spawn, model):
    prompt = f"gone from {model}"
    headers = {"x-trtkit-class": "interactive"}
    slow = {**length_of(model, 200), "text_input": prompt}
    call = spawn(ask(front, model, headers=headers, **slow))
    await real.event("start", prompt)
    call.cancel()
    await real.event("cancel", prompt)
    await front.until(1, "requests_total", reason="client_cancelled")


@both
async def test_priority_chooses_the_class_and_its_prompts_limit_refuses(front, model):
    with pytest.raises(grpc.aio.AioRpcError, match="its class may have 100") as caught:
        async for _ in stream(
            front.address,
            {"model_name": model, "inputs": inputs_of(text_input="x" * 150), "priority": 3},
        ):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("model", "values", "said"),
    [
        (VLLM_MODEL, {"sampling_parameters": "{max_tokens: 3}"}, "'sampling_parameters' is no JSON"),
        (VLLM_MODEL, {"sampling_parameters": "[3]"}, "no JSON object"),
        (VLLM_MODEL, {"sampling_parameters": '{"max_tokens": 1.5}'}, "max_tokens of .* must be an integer"),
        (VLLM_MODEL, {"sampling_parameters": '{"max_tokens": true}'}, "must be an integer"),
        (VLLM_MODEL, {"sampling_parameters": '{"max_tokens": 0}'}, "is 0, it must be at least 1"),
        (VLLM_MODEL, {"sampling_parameters": '{"max_tokens": 1, "max_tokens": 9}'}, "twice"),
        (VLLM_MODEL, {"sampling_parameters": '{"n": 2}'}, "n of .* is 2: send one request for each answer"),
        (VLLM_MODEL, {"image": "aGk="}, "input 'image' is refused"),
        (LLMAPI_MODEL, {"sampling_param_max_tokens": 0}, "'sampling_param_max_tokens' is 0"),
        (LLMAPI_MODEL, {"max_tokens": 5}, "unexpected input 'max_tokens'"),
    ],
)
async def test_what_cannot_be_counted_is_refused_by_name(front, model, values, said):
    with pytest.raises(grpc.aio.AioRpcError, match=said) as caught:
        await timed(ask(front, model, text_input="a", **values))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_decoupled_model_gets_round_admission_by_no_unary_call(real, front):
    async with triton.InferenceServerClient(front.address) as client:
        with pytest.raises(InferenceServerException, match="decoupled transaction policy"):
            await client.infer(VLLM_MODEL, inputs_of(text_input="unary"))
    assert real._events("start", "unary") == []


@pytest.fixture
def python_api(fake):
    """NVIDIA's own model: with ``stop``, under a name of its own."""
    inputs = {
        "text_input": ("STRING", False),
        "sampling_param_max_tokens": ("INT32", True),
        "streaming": ("BOOL", True),
        "stop": ("BOOL", True),
    }
    fake.configs["mine"] = config = model_config("mine", inputs)
    config.max_batch_size = 0
    return config


async def test_a_model_that_declares_stop_is_told_to(fake, python_api, until_stop, serve, spawn):
    front = await serve(fake.address)
    call = spawn(ask(front, "mine", text_input="a", streaming=True))
    end_s = time.monotonic() + 5
    while not fake.running:
        assert time.monotonic() < end_s, "it never reached the engine"
        await asyncio.sleep(0.01)
    call.cancel()
    await front.until(1, "requests_total", reason="client_cancelled")
    await front.until(0, "cancelling_requests")
    assert fake.stopped == {fake.requests[0].id}


async def test_a_whole_answer_of_a_model_that_is_not_decoupled_is_admitted(fake, python_api, serve):
    async def answer(request, context):
        return text_chunk(request, "abc").infer_response

    python_api.model_transaction_policy.decoupled, fake.unary = False, answer
    front = await serve(fake.address)
    async with triton.InferenceServerClient(front.address) as client:
        result = await client.infer("mine", inputs_of(text_input="a"))
    assert result.as_numpy("text_output").item() == b"abc"
    assert read_int32(fake.requests[0], "sampling_param_max_tokens") == 16
    assert await front.metric("requests_total", model="other", reason="ok") == 1


async def test_while_no_server_tells_no_model_is_passed_through(serve):
    front = await serve("127.0.0.1:1")
    with pytest.raises(grpc.aio.AioRpcError, match="no_backend"):
        await timed(ask(front, "mine", text_input="a"))


def test_the_repositories_that_trtkit_makes_are_known():
    assert dialect_of({each.name: each for each in llmapi.INPUTS}) is LLMAPI
    assert dialect_of({each.name: each for each in vllm.INPUTS}) is VLLM
    assert dialect_of({"text_input": None, "max_tokens": None, "stop_words": None}) is TEXT
    assert dialect_of({"input_ids": None, "request_output_len": None}) is TOKENS
    assert dialect_of({"text_input": None}) is None
    assert len({each.known_by for each in DIALECTS}) == len(DIALECTS)


def test_a_length_beside_the_json_that_is_read_is_refused():
    request = service_pb2.ModelInferRequest(model_name="v")
    request.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(struct.pack("<I", 2) + b"{}")
    request.parameters["max_tokens"].int64_param = 9
    with pytest.raises(Refusal, match="parameter 'max_tokens' is not read"):
        JsonLength().read(LlmRequest(request.SerializeToString()))


@given(st.integers(1, 10**9), st.dictionaries(st.sampled_from("ab"), st.floats(0, 1)))
def test_a_clipped_json_keeps_all_else(tokens, others):
    schema = ModelSchema("v", {"sampling_parameters": Input("BYTES", (1,), True)}, False, True)
    request = service_pb2.ModelInferRequest(model_name="v")
    tensor = request.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(json.dumps({**others, "max_tokens": str(tokens)}).encode())
    call = LlmRequest(request.SerializeToString())
    assert JsonLength().read(call) == tokens
    JsonLength().write(call, schema, 3)
    assert json.loads(LlmRequest(call.address("x")).tensors.text("sampling_parameters")) == {
        **others,
        "max_tokens": 3,
    }


def letters(**settings):
    counter = PromptCounter(None)
    counter.count_answer = len
    return TextMeter(counter, **settings)


@given(st.lists(st.text("ab", min_size=1, max_size=3), max_size=8))
def test_a_cumulative_answer_counts_once(pieces):
    meter, so_far, counted = letters(), b"", 0
    for piece in pieces:
        so_far += piece.encode()
        counted += meter(so_far)
    assert counted == len(so_far)


def test_pieces_of_their_own_count_whole_and_an_echo_not_at_all():
    meter = letters(echo=b"prompt")
    assert [meter(piece) for piece in (b"promptab", b"cd", b"cdef", b"cdefg")] == [2, 2, 4, 5]
    assert [letters()(piece) for piece in (b"ab", b"abc")] == [2, 3]
