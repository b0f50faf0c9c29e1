"""Drafts change how fast a text comes, never the text: in rounds alone, and through the BLS model in a real Triton."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig as TritonConfig

import trtkit.triton
from tests.triton.conftest import Stream
from tests.triton.test_generation import planned as planned_for
from trtkit.triton.folder import write
from trtkit.triton.parts import install
from trtkit.triton.repository import render
from trtkit.triton.server import TritonServer

BLS = Path(trtkit.triton.__file__).parent / "models" / "tensorrt_llm_bls"
FAKE = Path(__file__).with_name("fake_engine.py")


def load(name):
    spec = importlib.util.spec_from_file_location(name, BLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def following(tokens, length, skill=100):
    """Return what a model of this skill writes: the same as the best one, but for every so many tokens."""
    written = list(tokens)
    for _ in range(length):
        best = (sum(written[-3:]) * 7 + len(written)) % 50
        written.append(best if (best * 31) % 100 < skill else best + 1)
    return written[len(tokens) :]


@given(
    prompt=st.lists(st.integers(0, 49), min_size=1, max_size=5),
    limit=st.integers(1, 40),
    guesses=st.integers(1, 8),
    skill=st.integers(0, 100),
    end=st.integers(0, 60),
)
def test_rounds_write_what_the_large_model_alone_writes(prompt, limit, guesses, skill, end):
    alone = following(prompt, limit)
    alone = alone[: alone.index(end) + 1] if end in alone else alone

    def check(tokens, guessed):
        own = following(tokens, len(guessed) + 1)
        accepted = 0
        while accepted < len(guessed) and guessed[accepted] == own[accepted]:
            accepted += 1
        new = own[: accepted + 1]
        return new[: new.index(end) + 1] if end in new else new

    found = load("trtkit_rounds").rounds(
        prompt,
        limit,
        guesses,
        guess=lambda tokens, count: following(tokens, count, skill),
        check=check,
        ends=lambda written: end in written,
    )
    assert [token for new in found for token in new] == alone


def test_stop_sequences_are_read_by_where_they_end():
    assert load("trtkit_rounds").stop_sequences([[5, 6, 7, 0], [2, 3, -1, -1]]) == [[5, 6], [7]]


@pytest.fixture(scope="module")
def drafting(plan, tokenizer_dir, tmp_path_factory):
    """A Triton whose two engines are small rules."""
    root = tmp_path_factory.mktemp("drafting")
    # A line whose engines have other names for some inputs than clients have.
    target = planned_for("0.18").target
    target = replace(target, build_flags={**target.build_flags, "max_draft_len": 8})
    planned = replace(plan, backend="tensorrt", target=target)
    files = render(planned, draft=planned, mount=str(root / "repo"))
    for model in ("tensorrt_llm", "tensorrt_llm_draft"):
        config = text_format.Parse(files[f"{model}/config.pbtxt"].decode(), TritonConfig())
        config.backend = "python"
        files[f"{model}/config.pbtxt"] = text_format.MessageToString(config).encode()
        files[f"{model}/1/model.py"] = FAKE.read_bytes()
    write(files, root / "repo")
    engine = root / "engine"
    engine.mkdir()
    (engine / "rank0.engine").write_bytes(b"rule")
    install(root / "repo", engine, tokenizer_dir, engine)
    with TritonServer(root / "repo", log_file=root / "triton.log") as server:
        server.wait_ready(60)
        yield lambda **inputs: Stream(server.grpc_address, "tensorrt_llm_bls", "", None, inputs)


def text(answers):
    return b"".join(answer["text_output"].item() for answer in answers)


@pytest.mark.parametrize("prompt", ["The quick", "x"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_draft_changes_no_text_and_saves_answers(drafting, prompt, stream):
    asked = {"text_input": prompt, "max_tokens": 30, "end_id": -1, "stream": stream}
    plain, drafted = (list(drafting(**asked, num_draft_tokens=count)) for count in (0, 4))
    assert text(plain) == text(drafted)
    if stream:
        assert len(drafted) < 30
    else:
        assert len(drafted) == 1


def test_old_engines_hear_their_own_names_for_what_clients_say(drafting):
    answers = list(drafting(text_input="x", max_tokens=3, end_id=-1, seed=1, min_tokens=2, stream=False))
    assert text(answers)


def test_what_does_not_go_with_drafts_is_refused_by_name(drafting):
    stream = drafting(text_input="x", max_tokens=5, num_draft_tokens=3, return_log_probs=True)
    assert list(stream) == []
    assert "'return_log_probs' does not go with 'num_draft_tokens'" in str(stream.error)


@pytest.mark.parametrize(
    ("count", "message"),
    [(9, "'num_draft_tokens' must be at most 8 in this model"), (-1, "must be 0 or above, got -1")],
)
def test_more_drafts_than_the_engine_is_built_for_are_refused(drafting, count, message):
    stream = drafting(text_input="x", max_tokens=5, num_draft_tokens=count)
    assert list(stream) == []
    assert message in str(stream.error)


def test_without_a_draft_model_drafts_are_refused(ask):
    stream = ask("tensorrt_llm_bls", text_input="x", max_tokens=5, num_draft_tokens=3)
    assert list(stream) == []
    assert "num_draft_tokens" in str(stream.error)
