"""`trtkit plan` as people and programs use it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.plan.published import FOLDER
from trtkit.cli import app
from trtkit.errors import ContractError, InputError

CONFIG = str(FOLDER / "llama-3.1-8b.json")
CONTRACT = """
name: t
model: {source: ./absent}
quantization: {weights: fp8, kv_cache: fp8}
engine: {backend: tensorrt, gpu: h100-sxm}
classes: {a: {priority: 1, ttft_ms: 1000, tpot_ms: 40, max_prompt_tokens: 2000}}
"""


def run(*arguments):
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_configuration_alone_is_planned():
    document = json.loads(run(CONFIG, "--gpu", "h200", "--weights", "fp8", "--output", "json").stdout)
    plan = document["plan"]
    assert (plan["backend"], plan["gpu"]) == ("tensorrt", "h200")
    assert plan["memory"]["weights_bytes"] > 9e9


def test_a_folder_stands_for_its_configuration(tmp_path):
    (tmp_path / "config.json").write_text((FOLDER / "llama-3.1-8b.json").read_text())
    assert "H200" in run(tmp_path, "--gpu", "h200").stdout


def test_a_configuration_alone_is_planned_for_the_cpu_too():
    assert "decode" in run(FOLDER / "smollm2-135m.json").stdout


def test_more_layers_than_any_model_has_are_refused_by_name(tmp_path):
    config = json.loads((FOLDER / "llama-3.1-8b.json").read_text()) | {"num_hidden_layers": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ContractError, match=r"num_hidden_layers: .* at most 10000, is 1000000000"):
        run(tmp_path, "--gpu", "h200")


def test_a_contract_is_planned_without_its_weights(tmp_path):
    contract = tmp_path / "c.yaml"
    contract.write_text(CONTRACT)
    text = run(contract, "--config", CONFIG, "--tp", "2").stdout
    assert "2 x H100 SXM" in text
    assert "class a" in text
    with pytest.raises(InputError) as caught:
        run(contract)
    assert "--config" in caught.value.hint


@pytest.fixture
def drafting(tmp_path):
    """Write a contract, with a draft model and without, of which there are only configurations."""

    def write(*models, **engine):
        for name, model in zip(("large", "small"), models, strict=True):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text((FOLDER / f"{model}.json").read_text())
            text = CONTRACT.replace("absent", name).replace(
                "h100-sxm}", f"h100-sxm, {engine.get(name, '')}}}"
            )
            (tmp_path / f"{name}.yaml").write_text(text)
        alone = (tmp_path / "large.yaml").read_text()
        drafts = "engine: {speculation: {mode: draft-target, draft: small.yaml, max_draft_tokens: 5},"
        (tmp_path / "large.yaml").write_text(alone.replace("engine: {", drafts))
        (tmp_path / "alone.yaml").write_text(alone)
        return tmp_path / "large.yaml", tmp_path / "alone.yaml"

    return write


def test_a_draft_model_is_planned_beside_its_target(drafting):
    path, alone = drafting("llama-3.1-8b", "llama-3.2-1b")
    with pytest.raises(ContractError, match="draft and target take") as caught:
        run(path)
    (problem,) = caught.value.problems
    tokens = int(problem.hint.removeprefix("set it to ").partition(" ")[0])
    for each in (path, path.with_name("small.yaml")):
        each.write_text(
            each.read_text().replace("h100-sxm,", f"h100-sxm, kv_cache: {{max_tokens: {tokens}}}")
        )
    result = run(path, "--output", "json")
    assert "neither accepted drafts" in result.stderr
    with_draft, without = (
        json.loads(each.stdout)["plan"]["memory"] for each in (result, run(alone, "--output", "json"))
    )
    assert tokens == with_draft["kv_tokens"] < without["kv_tokens"]
    rows = 256 * 128_256 * 4
    assert with_draft["activation_bytes"] - without["activation_bytes"] >= 5 * rows


def test_what_is_wrong_with_a_draft_is_told_beside_the_rest(drafting):
    path, _ = drafting("llama-3.1-8b", "llama-3.2-1b", large="build_flags: {nope: 1}", small="trtllm: '9.9'")
    with pytest.raises(ContractError) as caught:
        run(path)
    found = {(each.file.rpartition("/")[2], each.key) for each in caught.value.problems}
    assert found >= {("large.yaml", "engine.build_flags.nope"), ("small.yaml", "engine.trtllm")}


def test_a_draft_that_is_not_here_is_a_warning(drafting):
    path, _ = drafting("llama-3.1-8b", "llama-3.2-1b")
    (path.parent / "small" / "config.json").unlink()
    assert "the draft model is not counted" in run(path).stderr
    compared = run(path, "--config", CONFIG, "--compare", "--gpu", "h200", "--tp", "1")
    assert "the draft model is left out of what is tried" in compared.stderr


def test_problems_name_the_contracts_lines(tmp_path):
    contract = tmp_path / "c.yaml"
    contract.write_text(CONTRACT.replace("h100-sxm", "a100-80"))
    with pytest.raises(ContractError) as caught:
        run(contract, "--config", CONFIG)
    assert {(each.key, each.line) for each in caught.value.problems} == {
        ("quantization.weights", 4),
        ("quantization.kv_cache", 4),
    }


def test_questions_have_answers():
    solved = json.loads(run(CONFIG, "--gpu", "l4", "--solve", "max_batch_size", "--output", "json").stdout)
    assert solved["plan"]["limits"]["max_batch_size"] == solved["solution"]["max_batch_size"] > 0
    with pytest.raises(InputError, match="nothing solves"):
        run(CONFIG, "--gpu", "l4", "--solve", "happiness")


def test_a_comparison_is_text_or_a_page(tmp_path):
    page = tmp_path / "page.html"
    text = run(CONFIG, "--compare", "--html", page, "--prompt-tokens", 1000, "--output-tokens", 200).stdout
    assert "h200" in text
    assert "<svg" in page.read_text()
    with pytest.raises(InputError, match="draws a comparison"):
        run(CONFIG, "--html", page)


def test_a_program_gets_every_candidate_with_what_it_needs_to_choose():
    rows = json.loads(run(CONFIG, "--compare", "--output", "json").stdout)["candidates"]
    possible = [row for row in rows if "why_not" not in row]
    assert len(rows) > len(possible) > 100
    assert possible[0]["requests_per_s"] > 0
    assert possible[0]["zones"]["decode_slots"] > 0


def test_the_catalog_is_listed():
    assert "rtx-pro-6000" in run("--gpu", "list").stdout
    with pytest.raises(InputError, match="missing"):
        run()


def test_a_measurement_is_taken_from_a_file(tmp_path):
    file, asked = tmp_path / "speed.json", (CONFIG, "--gpu", "h200")
    engine = json.loads(run(*asked, "--output", "json").stdout)["engine"]
    speed = {"source": "a run", "prefill_ms": [1, 0.1, 0], "step_ms": [9, 0, 0], "engine": engine}
    file.write_text(json.dumps(speed))
    assert "measured on this engine: a run" in run(*asked, "--calibration", file).stdout
    with pytest.raises(InputError, match="measured on another engine: tensor_parallel 1"):
        run(*asked, "--tp", 2, "--calibration", file)


SMALL = str(FOLDER / "smollm2-135m.json")
WORK = ("--prompt-tokens", 100, "--output-tokens", 5)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((SMALL, *WORK), "--calibration"),
        ((SMALL, "--silicon"), "--calibration"),
        ((CONFIG, "--gpu", "h200", "--backend", "vllm", "--silicon"), "--silicon"),
        ((CONFIG, "--compare", "--silicon"), "--silicon"),
        ((CONFIG, "--compare", "--calibration", "x"), "--calibration"),
        ((CONFIG, "--compare", "--solve", "gpu"), "--solve"),
        ((CONFIG, "--compare", "--step", "convert"), "--step"),
        ((CONFIG, "--solve", "gpu", "--gpu", "h200"), "--gpu"),
        ((CONFIG, "--solve", "tensor_parallel", "--gpu", "h200", "--tp", 2), "--tp"),
        ((CONFIG, "--solve", "gpu", "--silicon"), "--silicon"),
        ((CONFIG, "--step", "convert", *WORK), "--prompt-tokens"),
        ((CONFIG, "--gpu", "h200", "--silicon", "--calibration", "x"), "--silicon"),
        ((CONFIG, "--weights", "int8-wo", "--set", "quantization.weights=fp8"), "--weights"),
        ((CONFIG, "--gpu", "h200", "--prompt-tokens", 5), "--output-tokens"),
        ((CONFIG, "--config", SMALL), "config"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(arguments, name):
    with pytest.raises(InputError) as caught:
        run(*arguments)
    assert name in str(caught.value)


def test_a_comparison_is_narrowed_by_what_is_named():
    rows = json.loads(run(CONFIG, "--compare", "--gpu", "h200", "--tp", 2, "--output", "json").stdout)[
        "candidates"
    ]
    assert {(row["gpu"], row["tensor_parallel"]) for row in rows} == {("h200", 2)}
    with pytest.raises(InputError, match="no GPU of the catalog"):
        run(CONFIG, "--compare", "--gpu", "h20000")


def test_a_comparison_that_finds_nothing_says_why():
    result = run(FOLDER / "smollm2-135m.json", "--gpu", "h200", "--compare", "--tp", "4")
    assert result.exit_code == 2
    assert "none of" in result.stderr
    assert "9 query heads" in result.stderr


@pytest.mark.parametrize("question", [("--solve", "gpu"), ("--compare",)])
def test_gpus_are_not_asked_of_a_back_end_that_is_named_and_has_none(question, tmp_path):
    with pytest.raises(InputError, match="the cpu back end runs on none"):
        run(CONFIG, "--backend", "cpu", *question)
    path = tmp_path / "c.yaml"
    path.write_text(
        CONTRACT.replace("tensorrt, gpu: h100-sxm", "cpu").replace("fp8", "int8-wo", 1).replace("fp8", "auto")
    )
    (tmp_path / "absent").mkdir()
    assert "cpu runs on no GPU: the answer is for tensorrt" in run(path, "--config", CONFIG, *question).stderr


@pytest.mark.parametrize("option", ["--gpu", "--weights"])
def test_an_option_that_a_shell_left_empty_is_none(option):
    with pytest.raises(InputError, match=f"{option} is empty"):
        run(CONFIG, option, "")


def test_the_smallest_gpu_is_one_for_tensorrt():
    solved = json.loads(run(CONFIG, "--solve", "gpu", "--output", "json").stdout)
    assert solved["plan"]["backend"] == "tensorrt"
    assert solved["solution"]["gpu"] == solved["plan"]["gpu"]


def test_what_is_wrong_with_an_option_is_not_blamed_on_the_model():
    with pytest.raises(ContractError) as caught:
        run(CONFIG, "--gpu", "h200", "--set", "engine.limits.max_batch_size=x")
    assert not caught.value.problems[0].file


def test_a_reader_sees_why_values_are_what_they_are():
    text = run(CONFIG, "--gpu", "h200").stdout
    assert "not given: trtkit's own; the model has 131,072" in text
    assert "pace" in run(SMALL).stdout
    assert "unknown" in run(SMALL).stdout


def test_each_pool_has_a_plan_of_its_own():
    pools = "--set", "pools={standard: {}, long: {min_prompt_tokens: 1000, limits: {max_batch_size: 2}}}"
    plans = json.loads(run(SMALL, *pools, "--output", "json").stdout)["pools"]
    assert [each["plan"]["limits"]["max_batch_size"] for each in plans.values()] == [32, 2]
    one = json.loads(run(SMALL, *pools, "--pool", "long", "--output", "json").stdout)
    assert one == {"schema": 1, "pools": {"long": plans["long"]}}
    with pytest.raises(InputError, match="a question about one of them"):
        run(SMALL, *pools, "--solve", "max_batch_size")
