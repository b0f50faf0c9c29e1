"""`trtkit gate` and the gate of a build, on tiny models: verdicts, figures, exit codes, what is published."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.checkpoint.conftest import BYTES, save, tiny_llama  # noqa: F401 - a fixture
from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.flow.conftest import calmed, save_tokenizer
from trtkit.checkpoint.safetensors import read_header

FEW = ("--samples", 3, "--sample-tokens", 40)
TEXT = {"samples": 3, "sample_tokens": 40}


@pytest.fixture
def model(tiny_llama):  # noqa: F811
    folder = tiny_llama(name="model", edit=calmed)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def quantized(trtkit, model, tmp_path):  # noqa: F811
    out = tmp_path / "int8"
    assert trtkit("convert", model, "--weights", "int8-wo", "-o", out)[0] == 0
    return out


def rewrite(folder, edit):
    file = folder / "rank0.safetensors"
    tensors = {name: np.array(info.read()) for name, info in read_header(file).items()}
    edit(tensors)
    save(file, tensors)


def test_a_good_candidate_passes_with_its_figures(trtkit, model, quantized):  # noqa: F811
    code, out, _ = trtkit("gate", model, quantized, *FEW, "--output", "json")
    report = json.loads(out)
    assert (code, report["verdict"], report["reasons"]) == (0, "pass", [])
    figures = {each["name"]: each for each in report["measures"]}
    kl = figures["KL"]["interval"]
    assert 0 < kl["low"] <= kl["value"] <= kl["high"] < 0.05
    assert figures["KL"]["floor"]["value"] > 0
    assert figures["top-1 agreement"]["limit"] == 0.9 * figures["top-1 agreement"]["floor"]["value"]
    assert (report["algorithm"], report["num_samples"], report["num_tokens"]) == ("W8A16", 3, 120)
    assert len(report["layer_errors"]) == 2
    assert len(report["weight_errors"]) == 14
    assert len(report["worst"]) == 20


def test_the_limit_decides_and_exit_6_says_no(trtkit, model, quantized):  # noqa: F811
    code, out, err = trtkit("gate", model, quantized, *FEW, "--max-kl", "1e-9")
    assert code == 6
    assert "FAIL" in out
    assert re.search(r"the gate says no: KL: \S+, at worst \S+ \(95 %\), is above 1e-09", err)
    code, out, _ = trtkit("gate", model, quantized, *FEW, "--max-kl", "1e-9", "--output", "json")
    document = json.loads(out)
    assert (code, document["verdict"], document["error"]["exit_code"]) == (6, "fail", 6)


def test_the_baseline_runs_once_for_several_candidates(trtkit, model, quantized, tmp_path):  # noqa: F811
    trtkit("convert", model, "-o", tmp_path / "plain")
    assert "baseline: done" in trtkit("gate", model, quantized, *FEW)[2]
    code, out, err = trtkit("gate", model, tmp_path / "plain", *FEW, "--output", "json")
    assert (code, "baseline" in err) == (0, False)
    # Rounding the baseline's log-probabilities to float16 is all that is left.
    assert json.loads(out)["measures"][0]["interval"]["high"] < 1e-5


def test_bfloat16_does_without_a_floor(trtkit, model, quantized):  # noqa: F811
    code, out, _ = trtkit("gate", model, quantized, *FEW, "--precision", "bfloat16", "--output", "json")
    report = json.loads(out)
    assert code == 0
    assert 1e-6 < report["measures"][0]["interval"]["value"] < 0.05
    assert [each["floor"] for each in report["measures"]] == [None] * 4


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_fails_whatever_the_limits(trtkit, model, tmp_path, value):  # noqa: F811
    out = tmp_path / "plain"
    trtkit("convert", model, "-o", out)
    rewrite(out, lambda tensors: tensors["transformer.ln_f.weight"].__setitem__(3, value))
    code, text, err = trtkit("gate", model, out, *FEW, "--max-kl", "1e9", "--min-top1", 0, "--output", "json")
    assert code == 6
    assert "not finite in 3 of 3 samples" in err
    assert json.loads(text)["verdict"] == "fail"


def test_damage_that_verify_cannot_see_is_seen_here(trtkit, model, quantized):  # noqa: F811
    def swap(tensors):
        name = "transformer.layers.1.mlp.{}.weight"
        tensors[name.format("fc")], tensors[name.format("gate")] = (
            tensors[name.format("gate")], tensors[name.format("fc")])  # fmt: skip

    rewrite(quantized, swap)
    assert trtkit("verify", quantized)[0] == 0
    code, out, _ = trtkit("gate", model, quantized, *FEW, "--output", "json")
    report = json.loads(out)
    assert code == 6
    assert report["layer_errors"][0] < 0.05 < report["layer_errors"][1]
    assert max(report["weight_errors"], key=report["weight_errors"].get).startswith("model.layers.1.mlp.")


def test_fewer_samples_than_asked_for_are_told(trtkit, model, quantized, tmp_path):  # noqa: F811
    (tmp_path / "few.txt").write_text("word " * 30)
    options = ("--data", tmp_path / "few.txt", "--sample-tokens", 40, "--samples", 100)
    code, out, err = trtkit("gate", model, quantized, *options)
    assert code == 0
    assert "the gate read 3 of 100 samples" in err
    assert "3 samples, 120 tokens of " in out
    report = json.loads(trtkit("gate", model, quantized, *options, "--output", "json")[1])
    assert (report["num_samples"], report["samples_asked"]) == (3, 100)


def test_letters_that_the_tokenizer_lacks_are_no_answers(trtkit, model, quantized, tmp_path):  # noqa: F811
    save_tokenizer(model, [each for each in BYTES if not each.isupper()])
    (tmp_path / "task.jsonl").write_text('{"question": "?", "choices": ["a", "b"], "answer": 0}')
    code, _, err = trtkit("gate", model, quantized, *FEW, "--task-file", tmp_path / "task.jsonl")
    assert (code, "line 1: the tokenizer has no letters A to B that can be told apart" in err) == (2, True)


def test_candidates_and_limits_that_are_none_are_refused(trtkit, model, quantized, tmp_path):  # noqa: F811
    assert "is no candidate" in trtkit("gate", model, tmp_path, *FEW)[2]
    assert trtkit("gate", model, quantized, *FEW, "--max-kl", "inf")[0] == 2


def test_the_page_needs_nothing_else(trtkit, model, quantized):  # noqa: F811
    code, out, _ = trtkit("gate", model, quantized, *FEW, "--output", "html")
    assert code == 0
    assert not re.search(r"(src|href)=|url\(|<script|@import", out)
    charts = re.findall(r"<svg.*?</svg>", out, re.DOTALL)
    assert len(charts) == 6
    for chart in charts:
        ET.fromstring(chart)
    assert all(
        f"<h2>{name}</h2>" in out for name in ("Measures", "Outputs of the layers", "Weights", "Worst tokens")
    )


def test_data_and_questions_of_ones_own(trtkit, model, quantized, tmp_path):  # noqa: F811
    (tmp_path / "held.jsonl").write_text(
        "\n".join(json.dumps({"text": "word " * 20 + str(n)}) for n in range(4))
    )
    rows = [{"question": f"{n}?", "choices": ["a", "b", "c", "d"], "answer": "ABCD"[n % 4]} for n in range(8)]
    (tmp_path / "task.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = (*FEW, "--data", tmp_path / "held.jsonl", "--task-file", tmp_path / "task.jsonl")
    code, out, _ = trtkit("gate", model, quantized, *options, "--output", "json")
    report = json.loads(out)
    assert code == 0
    assert report["data"].endswith("held.jsonl")
    assert 0 <= report["measures"][-1]["interval"]["value"] <= 1
    assert report["measures"][-1]["interval"]["value"] == pytest.approx(report["baseline_accuracy"], abs=0.3)
    assert trtkit("gate", model, quantized, *options, "--min-accuracy", 1)[0] == 6


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is not a JSON object"),
        ('{"question": "?", "choices": ["a", "b"], "answer": 0, "answer": 1}', "line 1 names twice: answer"),
        (
            '{"question": " ", "choices": ["a", "b"], "answer": 0}',
            "line 1 is no question: question is no text",
        ),
        ('{"question": "?", "choices": ["a"], "answer": 0}', "no list of 2 to 26"),
        ('{"question": "?", "choices": ["a", ""], "answer": 0}', "a choice is no text"),
        ('{"question": "?", "choices": ["a", "a "], "answer": 0}', "two choices are the same"),
        ('{"question": "?", "choices": ["a", "b"], "answer": 2}', "the answer 2 is none of 2 choices"),
        ('{"question": "?", "choices": ["a", "b"], "answer": true}', "the answer True is none"),
        ("", "there are no questions"),
    ],
)
def test_questions_that_are_none_are_refused(trtkit, model, quantized, tmp_path, line, said):  # noqa: F811
    (tmp_path / "task.jsonl").write_text(line)
    code, _, err = trtkit("gate", model, quantized, *FEW, "--task-file", tmp_path / "task.jsonl")
    assert code == 2
    assert said in err


def test_what_cannot_be_a_pair_is_refused(trtkit, model, quantized, tiny_llama, tmp_path):  # noqa: F811
    other = tiny_llama(name="other", rope_theta=500.0)
    save_tokenizer(other)
    assert "rotary_base differ" in trtkit("gate", other, quantized, *FEW)[2]
    code, _, err = trtkit("gate", quantized, quantized)
    assert code == 2
    assert "give the Hugging Face folder" in err
    code, _, err = trtkit("gate", model, model)
    assert (code, "is no candidate: there is no rank0.safetensors" in err) == (2, True)
    short = tmp_path / "short.txt"
    short.write_text("too short")
    assert "fills 0 samples" in trtkit("gate", model, quantized, *FEW, "--data", short)[2]


@pytest.fixture
def contract(model, tmp_path):
    """Write a contract with a gate."""

    def write(weights, **gate):
        quantization = {"weights": weights, "gate": TEXT | gate.pop("limits", {}), **gate}
        content = {
            "name": "tiny",
            "model": {"source": "model"},
            "quantization": quantization,
            "engine": {"limits": {"max_batch_size": 4, "max_seq_len": 64, "max_num_tokens": 64}},
            "classes": {"only": {"priority": 1, "ttft_ms": 100, "default_output_tokens": 8}},
        }
        path = tmp_path / "contract.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def stages(trtkit, *arguments):  # noqa: F811
    code, out, err = trtkit(*arguments, "--output", "json")
    return (
        code,
        [(each["stage"], each.get("state"), each.get("facts")) for each in json.loads(out).get("stages", ())],
        err,
    )


def test_a_build_falls_back_until_the_gate_passes(trtkit, contract, tmp_path):  # noqa: F811
    path = contract("int8-wo", fallback=["int8-wo", "none"], limits={"max_kl": 1e-5})
    code, planned, _ = stages(trtkit, "build", path, "--dry-run")
    assert [each[:2] for each in planned] == [
        ("convert", "build"), ("gate", "build"), ("compile", "build"), ("gate-engine", "build"), ("repo", "build"),
        ("convert", "fallback"), ("gate", "fallback"),
    ]  # fmt: skip
    code, built, err = stages(trtkit, "build", path)
    assert code == 0, err
    assert "the gate refused int8-wo (W8A16) (KL: " in err
    assert [each[0] for each in built] == [
        "convert",
        "gate",
        "convert",
        "gate",
        "compile",
        "gate-engine",
        "repo",
    ]
    refused, passed, engine = (facts for stage, _, facts in built if stage.startswith("gate"))
    assert (refused["verdict"], passed["verdict"]) == ("fail", "pass")
    assert refused["measures"]["KL"]["high"] > 1e-5 > passed["measures"]["KL"]["high"]
    assert passed["tried"] == [refused]
    assert engine["executor"] == "OpenVINO, the engine itself"
    manifests = [
        json.loads(each.read_text()) for each in (tmp_path / "home" / "gate").glob("*/trtkit-manifest.json")
    ]
    assert sorted(each["facts"]["verdict"] for each in manifests) == ["fail", "pass"]
    code, out, _ = trtkit("build", path)
    assert (code, out.count("(limit 1e-05), top-1 agreement ")) == (0, 3), out
    planned = stages(trtkit, "build", path, "--dry-run")[1]
    assert [each[:2] for each in planned] == [
        ("convert", "hit"), ("gate", "failed"),
        ("convert", "hit"), ("gate", "hit"), ("compile", "hit"), ("gate-engine", "hit"), ("repo", "hit"),
    ]  # fmt: skip


def test_nothing_is_published_when_no_format_passes(trtkit, contract, tmp_path):  # noqa: F811
    path = contract("int8-wo", limits={"max_kl": 1e-9})
    code, _, err = trtkit("build", path)
    assert code == 6
    assert "the quality gate says no: int8-wo (W8A16): KL" in err
    assert not (tmp_path / "home" / "repo").exists()
    assert not (tmp_path / "home" / "compile").exists()
    document = json.loads(trtkit("build", path, "--output", "json")[1])
    assert "refused every format that may be built" in trtkit("build", path, "--dry-run")[2]
    assert [each["format"] for each in document["tried"]] == ["int8-wo (W8A16)"]
    assert document["tried"][0]["measures"]["KL"]["limit"] == 1e-9
    page = next((tmp_path / "home" / "gate").glob("*/report.html"))
    assert str(page) in err
    assert "fail" in page.read_text()


def test_the_cache_falls_back_when_no_format_of_the_weights_helps(trtkit, contract):  # noqa: F811
    options = {
        "kv_cache": "int8",
        "limits": {"max_kl": 1e-6},
        "calibration": {"samples": 3, "max_length": 32},
    }
    code, _, err = trtkit("build", contract("none", **options))
    assert (code, "quantization.kv_fallback: [auto]" in err) == (6, True)
    path = contract("none", kv_fallback=["auto"], **options)
    planned = stages(trtkit, "build", path, "--dry-run")[1]
    assert [each[:2] for each in planned] == [
        ("calibrate", "hit"), ("convert", "hit"), ("gate", "failed"),
        ("convert", "build"), ("gate", "build"), ("compile", "build"), ("gate-engine", "build"), ("repo", "build"),
    ]  # fmt: skip


def test_an_engine_is_judged_by_the_same_gate(trtkit, contract, model, tiny_llama, tmp_path):  # noqa: F811
    path = contract("int8-wo")
    _, built, _ = stages(trtkit, "build", path)
    assert [each[0] for each in built] == ["convert", "gate", "compile", "gate-engine", "repo"]
    gated = built[1][2]["measures"]["KL"]["value"]
    engine = next((tmp_path / "home" / "compile").glob("*/config.json")).parent
    code, out, err = trtkit("gate", model, engine, *FEW, "--output", "json")
    report = json.loads(out)
    assert (code, report["executor"]) == (0, "OpenVINO, the engine itself"), err
    other = tiny_llama(name="other", rope_theta=500.0)
    save_tokenizer(other)
    assert "rotary_base differ" in trtkit("gate", other, engine, *FEW)[2]
    # The checkpoint was judged as the engine computes.
    assert report["measures"][0]["interval"]["value"] == pytest.approx(gated, rel=0.1)


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"weights": "int8-wo", "fallback": ["none"]}, "add a gate"),
        ({"gate": {}, "fallback": ["int8-wo", "int8-wo"]}, "twice"),
        ({"gate": {"min_accuracy": 0.5}}, "task_file"),
        ({"gate": TEXT | {"data": "nowhere.txt"}}, "no such file or folder"),
        (
            {"weights": "none", "gate": TEXT, "fallback": ["w4a8-awq"], "calibration": {"max_length": 9}},
            "group of 128",
        ),
        ({"gate": {}}, "fix: quantization.gate.sample_tokens: 128"),
        ({"gate": TEXT | {"task_file": ""}}, "quantization.gate.task_file"),
        ({"gate": TEXT | {"task_file": "questions.jsonl"}}, "line 2: the question has"),
        ({"gate": TEXT | {"data": "short.txt"}}, "fills 0 samples"),
        ({"calibration": {"samples": 3}}, "none of the formats (none)"),
        ({"weights": "fp8", "calibration": {"max_length": 100_000}}, "max_length: 128"),
        ({"weights": "fp8", "calibration": {"max_length": 9, "column": "body"}}, "no field"),
        ({"weights": "fp8", "calibration": {"max_length": 9, "unreached": "borrow"}}, "no experts"),
        ({"kv_fallback": ["auto"]}, "add a gate"),
        (
            {
                "weights": "fp8",
                "calibration": {"max_length": 9, "data": "held.txt"},
                "gate": TEXT | {"data": "held.txt"},
            },
            "nothing but what is calibrated with",
        ),
    ],
)
def test_contracts_that_mean_nothing_are_refused(trtkit, contract, tmp_path, quantization, said):  # noqa: F811
    path = contract("none")
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "held.txt").write_text("long enough " * 20)
    questions = ({"question": "?" * length, "choices": ["a", "b"], "answer": 0} for length in (9, 200))
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    content = yaml.safe_load(path.read_text()) | {"quantization": quantization}
    path.write_text(yaml.safe_dump(content))
    code, _, err = trtkit("build", path, "--dry-run")
    assert code == 2
    assert said in err
