"""A graph with slots behind a real Triton: the same contract, and the same text as from the CPU back end."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.triton.conftest import Stream
from trtkit.checkpoint.progress import silent
from trtkit.engine.backend import backend_for
from trtkit.plan.types import EngineLimits
from trtkit.triton.folder import write
from trtkit.triton.parts import install
from trtkit.triton.repository import render
from trtkit.triton.server import TritonServer

pytest.importorskip("onnxruntime")

SLOTS = 4
PROMPTS = [
    "The quick",
    "日本語",
    "<|im_start|>Съешь же",
    "    def f(x):",
    "lazy",
    "fox " * 40,
    "naïve",
    "чаю",
]


@pytest.fixture(scope="module")
def slots_server(repo, plan, tokenizer_dir, tmp_path_factory):
    work = tmp_path_factory.mktemp("slots")
    plan = replace(plan, backend="onnx", limits=EngineLimits(SLOTS, 512, 1000, 48, 32))
    (work / "engine").mkdir()
    checkpoint = repo.parent / "checkpoint"
    backend_for("onnx").compile(checkpoint, work / "engine", plan, silent, work / "log")
    write(render(plan), work / "repo")
    install(work / "repo", work / "engine", tokenizer_dir)
    with TritonServer(work / "repo", log_file=work / "triton.log") as running:
        running.wait_ready(60)
        yield running


@pytest.fixture
def server(slots_server):
    """What ``ask`` and ``gauge`` talk to."""
    return slots_server


def tokens(stream: Stream) -> list[int]:
    answers = list(stream)
    assert (stream.finals, stream.error) == (1, None)
    return [token for answer in answers for token in answer["output_ids"][0, 0].tolist()]


def request(byte_level_tokenizer, prompt, length, **more):
    ids = byte_level_tokenizer.encode(prompt, add_special_tokens=False).ids
    sizes = {"input_lengths": len(ids), "request_output_len": length}
    return {"input_ids": [ids], "end_id": -1, "streaming": True} | sizes | more


def test_text_is_that_of_the_cpu_back_end(ask, repo, byte_level_tokenizer, tmp_path):
    given = [request(byte_level_tokenizer, prompt, 60) for prompt in PROMPTS]
    ours = [tokens(ask("tensorrt_llm", **each)) for each in given]
    with TritonServer(repo, log_file=tmp_path / "triton.log") as other:
        other.wait_ready(60)
        theirs = [tokens(Stream(other.grpc_address, "tensorrt_llm", "", None, each)) for each in given]
    assert ours == theirs
    assert len({tuple(each) for each in ours}) == len(PROMPTS)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.2, "runtime_top_k": 40, "seed": 3}])
def test_streams_that_join_and_leave_change_no_one_else(ask, byte_level_tokenizer, sampling):
    """Twice as many streams as slots, of eight lengths."""
    given = [
        request(byte_level_tokenizer, prompt, 20 + 30 * i, **sampling) for i, prompt in enumerate(PROMPTS)
    ]
    alone = [tokens(ask("tensorrt_llm", **each)) for each in given]
    with ThreadPoolExecutor(len(given)) as pool:
        together = list(pool.map(lambda each: tokens(ask("tensorrt_llm", **each)), given))
    assert together == alone


def test_a_stream_through_bls_is_text(ask):
    answers = ask("tensorrt_llm_bls", text_input="The quick", max_tokens=40, end_id=-1, stream=True)
    pieces = [answer["text_output"].item() for answer in answers]
    assert len(pieces) > 20
    whole = ask("ensemble", text_input="The quick", max_tokens=40, end_id=-1)
    assert b"".join(pieces) == b"".join(answer["text_output"].item() for answer in whole)


def test_a_cancelled_stream_frees_its_slot(ask, gauge, eventually, byte_level_tokenizer):
    long = request(byte_level_tokenizer, "fox " * 40, 900)
    streams = [ask("tensorrt_llm", **long) for _ in range(SLOTS)]
    for stream in streams:
        next(iter(stream))
    waiting = ask("tensorrt_llm", **request(byte_level_tokenizer, "fox", 5))
    eventually(lambda: gauge('="waiting"') == 1)
    assert gauge('="scheduled"') == gauge('request_type="max"') == SLOTS
    # A slot of 1000 tokens is 32 blocks; each holds what its tokens fill.
    assert gauge('kv_cache_block_type="max"') == SLOTS * 32
    assert SLOTS * 2 <= gauge('="used"') < SLOTS * 32
    streams[0].cancel()
    assert len(tokens(waiting)) == 5
    for stream in streams[1:]:
        stream.cancel()
    eventually(lambda: gauge("active") == gauge('="used"') == 0)


def test_what_cannot_be_honoured_is_refused_by_name(ask, byte_level_tokenizer):
    for change, said in (
        ({"beam_width": 2}, "beam_width"),
        ({"return_context_logits": True}, "return_context_logits"),
        ({"request_output_len": 1000}, "max_seq_len is 1000"),
    ):
        stream = ask("tensorrt_llm", **request(byte_level_tokenizer, "fox", 5) | change)
        assert list(stream) == []
        assert said in str(stream.error)
        assert stream.error.status() == "StatusCode.INVALID_ARGUMENT"


def test_only_an_engine_for_a_gpu_is_shown_one(slots_server, tmp_path):
    repo = tmp_path / "repo"
    shutil.copytree(slots_server.repo, repo)
    config = repo / "tensorrt_llm" / "1" / "engine" / "config.json"
    for backend, shown in (("onnx", False), ("rtx", True)):
        content = json.loads(config.read_text()) | {"backend": backend}
        config.unlink()  # linked to the engine that the other tests run
        config.write_text(json.dumps(content))
        environment = TritonServer(repo, log_file=tmp_path / "triton.log").env
        assert ("CUDA_VISIBLE_DEVICES" not in environment) == shown
