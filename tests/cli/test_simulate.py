"""``trtkit simulate`` from the command line."""

import json
from pathlib import Path

import pytest

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
    engine = () if "--engine" in arguments else ("--engine", "reference")
    return trtkit("simulate", contract, "--duration", 20, "--seeds", 1, *engine, *arguments)


def test_it_finds_the_fewest_engines_without_a_model(trtkit, contract):
    code, out, err = run(trtkit, contract, "--rate", 80, "--output", "json")
    document = json.loads(out)
    assert code == 0
    assert document["engines"] >= 2
    assert document["classes"][0]["attainment"] >= 0.9
    assert (document["objective_kept"], document["engine_known"], document["gpus"]) == (
        True,
        "declared",
        None,
    )
    assert f"{document['engines']} engines: chat" in err


def test_a_given_number_is_tried_as_it_is(trtkit, contract):
    code, out, err = run(trtkit, contract, "--engines", 1, "--rate", 80)
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (
        0,
        "engines: 1 (simulated)",
        "objective 90.0% of chat: missed",
    )
    assert "declared constants of an 8B model on one large GPU, not measured" in err


def test_what_kept_requests_from_their_promises_is_counted(trtkit, contract):
    _, out, _ = run(trtkit, contract, "--engines", 1, "--rate", 80, "--output", "json")
    for row in json.loads(out)["classes"]:
        assert sum(row["reasons"].values()) == row["requests"]
        assert sum(row["constraints"].values()) == row["requests"] - row["ok"]
        assert set(row["late"]) <= {"ttft", "tpot"}
    assert document_of(out, "chat")["constraints"]
    _, out, _ = run(trtkit, contract, "--engines", 1, "--rate", 80)
    assert "chat: " in out
    assert "; bound by " in out


def test_a_long_simulation_tells_how_far_it_is(trtkit, contract):
    _, _, err = run(trtkit, contract, "--engines", 2, "--rate", 10, "--duration", 3000)
    assert "simulation of 2 engines, seed 0 ...\n" in err
    assert "simulation of 2 engines, seed 0: done in " in err
    assert "simulation" not in run(trtkit, contract, "--engines", 2)[2]


def document_of(out, name):
    return next(row for row in json.loads(out)["classes"] if row["class_name"] == name)


def test_a_gpus_engine_is_the_one_that_the_plan_foresees(trtkit):
    folder = Path(__file__).parents[2]
    contract = folder / "build_configs" / "llama-3.1-8b__fp8-kv_fp8__h100-sxm-tp1.yaml"
    config = folder / "tests" / "plan" / "models" / "llama-3.1-8b.json"
    command = ("simulate", contract, "--config", config, "--duration", 5, "--seeds", 1, "--output", "json")
    code, out, _ = trtkit(*command)
    document = json.loads(out)
    assert (code, document["engine_known"], document["gpus"]) == (0, "foreseen", document["engines"])
    assert document["engine_source"].startswith("silicon, not measured: silicon table")
    assert document["pools"]["standard"]["engine"]["max_num_tokens"] == 8192
    code, _, err = trtkit("simulate", contract, "--duration", 5)
    assert (code, "nothing is known of this engine's speed" in err, "--engine reference" in err) == (
        2,
        True,
        True,
    )


def test_a_contract_with_pools_is_told_the_engines_of_each(trtkit, contract):
    limits = "--set", "engine.limits.max_num_tokens=4096"
    pools = (
        *limits,
        "--set",
        "pools={standard: {}, long: {min_prompt_tokens: 1000, limits: {max_batch_size: 4}}}",
    )
    code, out, _ = run(trtkit, contract, *pools, "--rate", 40, "--output", "json")
    document = json.loads(out)
    assert (code, document["objective_kept"]) == (0, True)
    found = {name: pool["engines"] for name, pool in document["pools"].items()}
    assert list(found) == ["standard", "long"]
    assert document["engines"] == sum(found.values())
    assert document["pools"]["long"]["engine"]["max_batch_size"] == 4
    code, out, _ = run(trtkit, contract, *pools, "--rate", 40, "--engines", "long=3,standard=2")
    assert (code, out.splitlines()[0]) == (0, "engines: 5 (standard 2, long 3) (simulated)")
    for wrong in ("standard=1,long=1,long=7", "standard=٣,long=1"):
        assert run(trtkit, contract, *pools, "--engines", wrong)[0] == 2
    code, _, err = run(trtkit, contract, *pools, "--engines", "3")
    assert (code, "--engines standard=2,long=2" in err) == (2, True)


def test_a_slow_engine_is_not_served_prompts_that_it_does_not_take(trtkit, contract):
    limits = ("--set", "engine.limits.max_input_len=64", "--set", "engine.limits.max_seq_len=96")
    _, out, _ = run(trtkit, contract, *limits, "--engines", 1, "--output", "json")
    document = json.loads(out)
    assert "of prompts cut" in document["traffic"]["chat"]
    # 64 tokens at 28000/s after a step that had begun.
    assert document["classes"][0]["ttft_p99_ms"] < 30


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
    _, out, _ = run(trtkit, contract, "--engine", engine, "--rate", 80, "--output", "json")
    assert json.loads(out)["engines"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--set", "classes.chat.ttft_ms=1"], 6, "alone on an engine, chat 0.0%"),
        (["--rate", "200", "--most", "1"], 6, "1 engines do not keep"),
        (["--traffic", "chat=nothing"], 2, "tables: azure2023_conversation"),
        (["--traffic", "chat=azure2023_code:-1"], 2, "not CLASS=TABLE"),
        (["--engine", "absent.json"], 2, "no engine model: [Errno 2] No such file"),
        (["--engine", "/dev/null"], 2, "no engine model: the file is empty"),
        (["--set", "engine.backend=cpu", "--traffic", "chat=nothing"], 2, "tables: azure2023_conversation"),
        (["--trace", "absent.csv"], 2, "cannot be read"),
        (["--trace", "absent.csv", "--cv", "2"], 2, "--cv says nothing about --trace"),
        (["--engines", "2", "--most", "3"], 2, "--most bounds a search"),
        (["--traffic", "chat=azure2023_code", "--traffic", "chat=azure2023_code"], 2, "names a class twice"),
        (["--keep-stamps"], 2, "--keep-stamps is about --trace"),
        (["--rate", "1e6", "--duration", "1e4"], 2, "are 1e+10 requests"),
        (
            ["--set", "classes.chat.ttft_ms=null", "--set", "classes.chat.tpot_ms=null"],
            2,
            "was promised anything",
        ),
    ],
)
def test_what_cannot_be_answered_is_said(trtkit, contract, arguments, code, message):
    found, out, err = run(trtkit, contract, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_a_measured_engine_is_simulated_and_no_other(trtkit, tmp_path):
    folder = Path(__file__).parents[2]
    contract = folder / "build_configs" / "llama-3.1-8b__fp8-kv_fp8__h100-sxm-tp1.yaml"
    config = ("--config", folder / "tests" / "plan" / "models" / "llama-3.1-8b.json")
    _, out, _ = trtkit("plan", contract, *config, "--output", "json")
    file = tmp_path / "calibration.json"
    measured = {"source": "a run", "engine": json.loads(out)["engine"]}
    measured |= {"prefill_ms": [8, 0.05, 0], "step_ms": [7, 0.05, 1e-5], "conditions": {"date": "2026-01-01"}}
    file.write_text(json.dumps(measured))
    command = ("simulate", contract, "--duration", 5, "--seeds", 1, "--output", "json", "--calibration", file)
    code, out, _ = trtkit(*command, *config)
    document = json.loads(out)
    assert (code, document["engine_known"]) == (0, "measured")
    assert document["pools"]["standard"]["engine"]["step_s"] == pytest.approx(0.007)
    assert document["pools"]["standard"]["engine"]["prefill_tokens_per_s"] == pytest.approx(20_000)
    code, _, err = trtkit(*command, *config, "--set", "quantization.weights=none")
    assert (code, "measured on another engine: weights 'fp8'" in err) == (2, True)
    code, _, err = trtkit(*command, *config, "--engine", "reference")
    assert (code, "two sources of one speed" in err) == (2, True)
    code, _, err = trtkit(*command)
    assert (code, "--config CONFIG.json" in err) == (2, True)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[]",
            '{"step_s": 0}',
            '{"step_s": "x"}',
            '{"steps": 1}',
            '{"step_s": NaN}',
            "{",
            '{"step_s": true}',
        ),
        *(
            '{"kv_tokens": 0}',
            '{"max_batch_size": 0.5}',
            '{"max_num_tokens": 2.5}',
            '{"tokens_per_block": 0}',
        ),
    ],
)
def test_an_engine_that_cannot_be_is_refused(trtkit, contract, tmp_path, text):
    engine = tmp_path / "engine.json"
    engine.write_text(text)
    code, _, err = run(trtkit, contract, "--engine", engine)
    assert code == 2
    assert str(engine) in err
