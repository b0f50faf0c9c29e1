"""The Python model inside a real tritonserver, around a stand-in of ``tensorrt_llm`` that counts letters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.triton.conftest import Stream
from trtkit.triton.folder import write
from trtkit.triton.repository import render
from trtkit.triton.server import TritonServer

# Each piece has all text so far, as CompletionOutput.text has.
STAND_IN = """
import asyncio
from types import SimpleNamespace


class SamplingParams:
    def __init__(self, max_tokens=32, **others):
        if max_tokens < 1:
            raise ValueError("max_tokens must be positive")
        self.max_tokens, self.others = max_tokens, others


class Running:
    def __init__(self, prompt, sampling, streaming):
        self.prompt, self.sampling, self.streaming, self.aborted = prompt, sampling, streaming, False

    def abort(self):
        self.aborted = True

    async def __aiter__(self):
        text, count = "", self.sampling.max_tokens
        for index in range(count):
            await asyncio.sleep(0.002)
            if self.aborted:
                return
            text += self.prompt[index % len(self.prompt)]
            if self.streaming or index == count - 1:
                reason = "length" if index == count - 1 else None
                yield SimpleNamespace(outputs=[SimpleNamespace(text=text, finish_reason=reason)])


class LLM:
    def __init__(self, **settings):
        assert settings["backend"] == "pytorch", settings
        assert "triton_config" not in settings, settings

    def generate_async(self, prompt, sampling_params=None, *, streaming=False):
        if prompt == "crash":
            raise RuntimeError("out of blocks")
        return Running(prompt, sampling_params, streaming)

    def shutdown(self):
        pass
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, plan_of):
    folder = tmp_path_factory.mktemp("llmapi")
    write(render(plan_of("llmapi")), folder / "repo")
    # The stub's Python takes no path of ours, and looks beside the model first.
    (folder / "repo" / "tensorrt_llm" / "1" / "tensorrt_llm.py").write_text(STAND_IN)
    with TritonServer(folder / "repo", log_file=folder / "log") as running:
        running.wait_ready(60, probe=lambda *_: None)
        yield running


@pytest.fixture
def ask(server):
    def start(**inputs):
        lists = {name: value if isinstance(value, list) else [value] for name, value in inputs.items()}
        return Stream(server.grpc_address, "tensorrt_llm", "", None, lists)

    return start


def text(answers):
    return b"".join(answer["text_output"].item() for answer in answers).decode()


def test_pieces_of_a_stream_make_the_text_of_one_answer(ask):
    stream = ask(text_input="abc", sampling_param_max_tokens=7, streaming=True, return_finish_reason=True)
    answers = list(stream)
    assert [answer["text_output"].item() for answer in answers] == [b"a", b"b", b"c", b"a", b"b", b"c", b"a"]
    assert [answer["finish_reason"].item() for answer in answers[-2:]] == [b"", b"length"]
    assert stream.finals == 1
    whole = list(ask(text_input="abc", sampling_param_max_tokens=7))
    assert (len(whole), text(whole)) == (1, "abcabca")


def test_a_prompt_comes_back_only_where_it_is_asked_for(ask):
    asked = {"text_input": "abc", "sampling_param_max_tokens": 2, "streaming": True}
    assert text(ask(**asked, sampling_param_exclude_input_from_output=False)) == "abcab"
    assert text(ask(**asked, sampling_param_exclude_input_from_output=True)) == "ab"


@pytest.mark.parametrize(
    ("inputs", "code", "said"),
    [
        ({"text_input": ["a", "b"]}, "INVALID_ARGUMENT", "one prompt, got 2"),
        ({"text_input": "a", "sampling_param_max_tokens": 0}, "INVALID_ARGUMENT", "must be positive"),
        ({"text_input": "crash"}, "INTERNAL", "RuntimeError: out of blocks"),
    ],
)
def test_errors_say_whose_fault_it_is(ask, inputs, code, said):
    stream = ask(**inputs)
    assert list(stream) == []
    assert said in str(stream.error)
    assert code in str(stream.error.status())


def test_many_requests_are_in_flight_and_a_gone_client_frees_its_place(ask):
    gone = ask(text_input="x", sampling_param_max_tokens=100_000, streaming=True)
    assert next(iter(gone))["text_output"].item() == b"x"
    gone.cancel()
    streams = [ask(text_input=letter, sampling_param_max_tokens=20, streaming=True) for letter in "abcd"]
    assert [text(stream) for stream in streams] == [letter * 20 for letter in "abcd"]
    assert np.all([stream.error is None for stream in streams])
