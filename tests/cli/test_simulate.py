"""``trtkit simulate`` from the command line."""

import json

import pytest

from trtkit.bench.sim.calibrate import read_engine
from trtkit.errors import InputError

CONTRACT = """
name: x
model: {source: nowhere}
classes:
  chat: {priority: 1, ttft_ms: 1000, tpot_ms: 60, max_output_tokens: 64, max_prompt_tokens: 4000}
  batch: {priority: 2, ttft_ms: 20000, sheddable: true, max_output_tokens: 64, max_prompt_tokens: 4000}
objective: {attainment: 0.9}
"""


@pytest.fixture
def contract(tmp_path):
    path = tmp_path / "contract.yaml"
    path.write_text(CONTRACT)
    return path


def run(trtkit, contract, *arguments):
    return trtkit("simulate", contract, "--duration", 20, "--seeds", 1, *arguments)


def test_it_finds_the_fewest_engines_without_a_model(trtkit, contract):
    code, out, err = run(trtkit, contract, "--rate", 40, "--output", "json")
    document = json.loads(out)
    assert code == 0
    assert document["engines"] >= 2
    assert document["classes"][0]["attainment"] >= 0.9
    assert f"{document['engines']} engines: chat" in err


def test_a_given_number_is_tried_as_it_is(trtkit, contract):
    code, out, err = run(trtkit, contract, "--engines", 1, "--rate", 40)
    assert (code, out.splitlines()[0]) == (0, "engines: 1, GPUs: 1")
    assert "declared constants, not measured ones" in err


def test_a_trace_sets_times_and_lengths(trtkit, contract, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "".join(f'{{"timestamp": {100 * n}, "input_length": 50, "output_length": 9}}\n' for n in range(60))
    )
    code, out, _ = run(
        trtkit, contract, "--trace", trace, "--traffic", "chat=azure2023_code", "--output", "json"
    )
    assert code == 0
    assert [row["requests"] for row in json.loads(out)["classes"]] == [60, 0]


def test_an_engines_own_constants_are_used(trtkit, contract, tmp_path):
    engine = tmp_path / "engine.json"
    engine.write_text('{"prefill_tokens_per_s": 1e9, "step_s": 1e-4}')
    _, out, _ = run(trtkit, contract, "--engine", engine, "--rate", 40, "--output", "json")
    assert json.loads(out)["engines"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--set", "classes.chat.ttft_ms=1"], 6, "alone on an engine, chat 0.0%"),
        (["--rate", "200", "--most", "1"], 6, "1 engines do not keep"),
        (["--traffic", "chat=nothing"], 2, "tables: azure2023_conversation"),
        (["--traffic", "chat=azure2023_code:-1"], 2, "not CLASS=TABLE"),
        (["--engine", "absent.json"], 2, "no engine model"),
        (["--trace", "absent.csv"], 2, "cannot be read"),
    ],
)
def test_what_cannot_be_answered_is_said(trtkit, contract, arguments, code, message):
    found, out, err = run(trtkit, contract, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_measured_requests_give_an_engine(tmp_path):
    rows = [
        {
            "prompt_tokens": 100 * n,
            "ttft_s": 0.02 + 100 * n / 5000,
            "running": n % 9,
            "tpot_s": 0.01 + 0.001 * (n % 9),
        }
        for n in range(1, 30)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    model = read_engine(path)
    assert model.prefill_tokens_per_s == pytest.approx(5000)
    assert (model.step_s, model.sequence_s) == (pytest.approx(0.01), pytest.approx(0.001))
    for wrong in (rows[:5], [{**row, "ttft_s": 1.0 / row["prompt_tokens"]} for row in rows], [rows[0]] * 30):
        path.write_text("\n".join(map(json.dumps, wrong)))
        with pytest.raises(InputError, match="no engine model"):
            read_engine(path)


@pytest.mark.parametrize(
    "text", ["[]", '{"step_s": 0}', '{"step_s": "x"}', '{"steps": 1}', '{"step_s": NaN}', "{"]
)
def test_an_engine_that_cannot_be_is_refused(trtkit, contract, tmp_path, text):
    engine = tmp_path / "engine.json"
    engine.write_text(text)
    code, _, err = run(trtkit, contract, "--engine", engine)
    assert code == 2
    assert str(engine) in err
