"""The Python models inside a real tritonserver, in front of a real engine."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest

from trtkit.triton.models.stub_io import Settings

TEXT_MODELS = ("tensorrt_llm_bls", "ensemble")
LONG = {"max_tokens": 6000, "end_id": -1, "stream": True}
PROMPTS = ["The quick", "日本語", "<|im_start|>Съешь же", "    def f(x):"]


def text(answers, row=None) -> bytes:
    parts = [a["text_output"].item() for a in answers if row is None or a["batch_index"].item() == row]
    return b"".join(parts)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_streamed_text_equals_batch_text_through_both_models(ask, prompt):
    texts = [
        text(ask(model, text_input=prompt, max_tokens=60, stream=stream, end_id=-1))
        for model in TEXT_MODELS
        for stream in (False, True)
    ]
    assert len(texts[0]) > 60
    assert texts == texts[:1] * 4


def test_bls_answers_each_engine_response_and_ends_once(ask):
    stream = ask(
        "tensorrt_llm_bls", text_input="The quick", max_tokens=40, stream=True, return_log_probs=True
    )
    answers = list(stream)
    timed = [answer for answer in answers if "output_log_probs" in answer]
    assert sum(answer["output_log_probs"].size for answer in timed) == 40
    assert len(answers) - len(timed) <= 1  # the tail that was no whole character
    assert (stream.finals, stream.error) == (1, None)


def test_whole_answer_comes_as_one_response(ask):
    assert len(list(ask("tensorrt_llm_bls", text_input="The quick", max_tokens=20))) == 1


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_rows_of_a_batch_are_told_apart(ask, model, stream):
    prompts = ["The quick", "x"]
    both = {"max_tokens": [[30], [20]], "stream": [[stream], [stream]], "end_id": [[-1], [-1]]}
    answers = list(ask(model, text_input=[[prompt] for prompt in prompts], **both))
    for row, (prompt, length) in enumerate(zip(prompts, (30, 20), strict=True)):
        assert text(answers, row) == text(ask(model, text_input=prompt, max_tokens=length, end_id=-1))


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_words_end_the_text_before_them(ask, model, stream):
    whole = text(ask(model, text_input="The quick", max_tokens=60, end_id=-1)).decode()
    stop = whole[25:28]
    answers = ask(
        model, text_input="The quick", max_tokens=60, end_id=-1, stream=stream, stop_words=[["zz", stop]]
    )
    assert text(answers).decode() == whole[: whole.index(stop)]


def test_bad_words_do_not_appear(ask):
    whole = text(ask("tensorrt_llm_bls", text_input="The quick", max_tokens=60, end_id=-1)).decode()
    assert " the" in whole
    banned = text(
        ask("tensorrt_llm_bls", text_input="The quick", max_tokens=60, end_id=-1, bad_words=[["the"]])
    )
    assert b"the" not in banned


@pytest.mark.parametrize(
    ("name", "value"), [("top_k", -5), ("top_p", float("nan")), ("top_p", 2.0), ("temperature", -1.0)]
)
def test_a_sampling_value_out_of_range_is_refused_by_name(ask, name, value):
    stream = ask("tensorrt_llm_bls", text_input="a", max_tokens=5, **{name: value})
    assert list(stream) == []
    assert name in str(stream.error)
    assert "INVALID_ARGUMENT" in stream.error.status()


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_unsupported_input_is_refused_by_name(ask, model):
    stream = ask(model, text_input="a", max_tokens=5, beam_width=2)
    assert list(stream) == []
    assert "beam_width" in str(stream.error)
    assert "INVALID_ARGUMENT" in stream.error.status()
    assert "Traceback" not in str(stream.error)


def test_max_tokens_must_be_positive(ask):
    stream = ask("tensorrt_llm_bls", text_input="a", max_tokens=0)
    assert list(stream) == []
    assert "max_tokens must be above 0" in str(stream.error)


def test_errors_of_the_engine_keep_text_and_code_through_bls(ask):
    errors = []
    for model in ("tensorrt_llm_bls", "ensemble"):
        stream = ask(model, text_input="a " * 600, max_tokens=5)
        assert list(stream) == []
        errors.append(stream.error)
    assert errors[0].status() == errors[1].status() == "StatusCode.INVALID_ARGUMENT"
    assert errors[0].message() in errors[1].message()  # the ensemble adds its name


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_input": ""}, "the prompt is empty"),
        ({"text_input": b"\xff"}, "is not UTF-8"),
        ({"stop_words": [[b"ok", b"\xff"]]}, "is not UTF-8"),
        ({"bad_words": [[b"\xff"]]}, "is not UTF-8"),
    ],
    ids=["empty prompt", "prompt", "stop words", "bad words"],
)
def test_bad_text_is_the_clients_mistake(ask, model, change, message):
    stream = ask(model, **({"text_input": "a", "max_tokens": 5} | change))
    assert list(stream) == []
    assert stream.error.status() == "StatusCode.INVALID_ARGUMENT"
    assert message in stream.error.message()
    if model == "tensorrt_llm_bls" and "UTF-8" in message:
        assert f"'{next(iter(change))}'" in stream.error.message()  # as the client calls it


WHOLE_INPUTS = {
    "tensorrt_llm_bls": {"text_input": "a", "max_tokens": 5},
    "preprocessing": {"QUERY": "a", "REQUEST_OUTPUT_LEN": 5},
    "tensorrt_llm": {"input_ids": [[5]], "input_lengths": 1, "request_output_len": 5},
    "postprocessing": {"TOKENS_BATCH": [[[5]]], "SEQUENCE_LENGTH": [[1]]},
}
OTHERS = {
    "tensorrt_llm_bls": {"stream": True, "end_id": 1},
    "preprocessing": {"END_ID": 1, "PAD_ID": 1},
    "tensorrt_llm": {"end_id": 1, "pad_id": 1},
    "postprocessing": {"CONTEXT_IDS": [[[5]]]},
}


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model, inputs in WHOLE_INPUTS.items() for name in inputs]
)
def test_missing_input_is_named(ask, model, name):
    """Triton 24.10 only counts the inputs: an optional one hides that a required one is missing."""
    inputs = WHOLE_INPUTS[model] | OTHERS[model]
    del inputs[name]
    stream = ask(model, **inputs)
    assert list(stream) == []
    assert stream.error.status() == "StatusCode.INVALID_ARGUMENT"
    assert f"input '{name}' is missing" in stream.error.message()


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        ("ensemble", {"text_input": "", "max_tokens": 5}),
        ("preprocessing", {"QUERY": "", "REQUEST_OUTPUT_LEN": 5}),
        ("tensorrt_llm", {"input_ids": [[5]], "input_lengths": 1, "request_output_len": 0}),
        ("tensorrt_llm_bls", {"text_input": "a", "max_tokens": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_requests_harm_nobody(ask, server, model, inputs):
    """Triton 24.10 crashes when a stream fails while its request is still being handed over."""
    for _ in range(30):
        stream = ask(model, **inputs)
        assert list(stream) == []
        assert stream.error.status() == "StatusCode.INVALID_ARGUMENT"
    assert server.failure() == ""


def tokens(**more):
    return {"input_ids": [[5, 6, 7, 0]], "input_lengths": 3, "request_output_len": 8, "end_id": -1} | more


def test_engine_model_streams_only_new_tokens_and_echoes_on_request(ask):
    streamed = [a["output_ids"][0, 0].tolist() for a in ask("tensorrt_llm", **tokens(streaming=True))]
    (echoed,) = ask("tensorrt_llm", **tokens(exclude_input_in_output=False))
    generated = list(chain.from_iterable(streamed))
    assert len(generated) == 8
    assert echoed["output_ids"][0, 0].tolist() == [5, 6, 7, *generated]
    assert echoed["sequence_length"].tolist() == [[11]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_lengths": 9}, "input_lengths"),
        ({"request_output_len": 0}, "request_output_len"),
        ({"input_ids": [[]], "input_lengths": 0}, "the prompt is empty"),
        ({"stop_words_list": [[[1, 2], [3, -1]]]}, "Sparse list"),
        ({"stop": True}, "request ID is not provided"),
        ({"embedding_bias": [[0.5] * 480]}, "embedding_bias"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_engine_model_refuses_what_it_cannot_honour(ask, change, message):
    stream = ask("tensorrt_llm", **tokens(**change))
    assert list(stream) == []
    assert message in str(stream.error)


@pytest.mark.parametrize("model", ["tensorrt_llm_bls", "tensorrt_llm"])
def test_cancelled_stream_frees_the_engine(ask, gauge, eventually, model):
    long = (
        {"text_input": "a", **LONG}
        if model != "tensorrt_llm"
        else tokens(request_output_len=6000, streaming=True)
    )
    stream = ask(model, **long)
    next(iter(stream))
    eventually(lambda: gauge("active") == 1)
    stream.cancel()
    eventually(lambda: gauge("active") == 0)
    eventually(lambda: gauge('="used"') == 0)


def test_stop_request_ends_the_request_of_the_same_id_only(ask):
    victim, bystander = (
        ask("tensorrt_llm", request_id=name, **tokens(request_output_len=length, streaming=True))
        for name, length in (("victim", 6000), ("bystander", 300))
    )
    next(iter(victim))
    stop = ask("tensorrt_llm", request_id="victim", **tokens(stop=True))
    assert list(stop) == []
    assert (stop.finals, stop.error) == (1, None)
    assert sum(a["sequence_length"].item() for a in victim) < 6000
    assert (victim.finals, victim.error) == (1, None)
    assert sum(a["sequence_length"].item() for a in bystander) == 300


def test_requests_run_side_by_side(ask):
    """A short request overtakes a long one: the BLS model holds nobody up."""
    long = ask("tensorrt_llm_bls", text_input="a", **LONG)
    next(iter(long))
    assert len(text(ask("tensorrt_llm_bls", text_input="b", max_tokens=5))) > 0
    assert long.finals == 0
    long.cancel()


def test_request_parameters_and_seed_reach_the_engine(ask):
    drawn = [
        text(
            ask(
                "tensorrt_llm_bls",
                text_input="The quick",
                max_tokens=30,
                temperature=1.5,
                top_k=50,
                seed=seed,
                parameters={"trtkit_priority": 3, "note": "kept"},
            )
        )
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_log_probs_are_per_token(ask):
    (answer,) = ask("ensemble", text_input="The quick", max_tokens=10, return_log_probs=True, end_id=-1)
    assert answer["output_log_probs"].shape == (1, 1, 10)
    np.testing.assert_allclose(answer["cum_log_probs"].item(), answer["output_log_probs"].sum(), rtol=1e-4)


def test_clients_that_go_away_under_load_harm_nobody(ask, server, gauge, eventually):
    """Triton 24.10's stub frees what its own threads still use unless finished requests rest for a while."""

    def request(number: int) -> int:
        stream = ask("tensorrt_llm_bls", text_input="a", max_tokens=60, end_id=-1, stream=True)
        if number % 2:
            for _, _answer in zip(range(number % 7), stream, strict=False):
                pass
            stream.cancel()
            return 1
        assert sum(1 for _ in stream) > 0
        return stream.finals

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(request, range(96))) == [1] * 96
    eventually(lambda: gauge("active") == 0)
    eventually(lambda: gauge('="used"') == 0)
    assert server.failure() == ""


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda settings: settings.number("key", 0), "1_000"),
        (lambda settings: settings.number("key", 0), "-1"),
        (lambda settings: settings.numbers("key"), "1,,2"),
        (lambda settings: settings.seconds("key", 100), "٣"),
        (lambda settings: settings.seconds("key", 100), "0"),
        (lambda settings: settings.flag("key", default=True), "on"),
    ],
)
def test_a_setting_that_is_not_of_its_kind_is_refused_by_name(read, value):
    config = {"max_batch_size": 1, "parameters": {"key": {"string_value": value}}}
    args = {"model_config": json.dumps(config), "model_repository": "model", "model_version": "1"}
    with pytest.raises(ValueError, match=r"config\.pbtxt: parameter key is .*, and has to be"):
        read(Settings(args))
