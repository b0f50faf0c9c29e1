"""Tasks of lm-eval in the gate: log-likelihoods, paired losses, refusals; run with the extra lm-eval installed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.quantize.test_gate_verb import FEW, contract, model, quantized, stages  # noqa: F401 - fixtures
from trtkit.quantize.gate import harness
from trtkit.quantize.gate.metrics import loss
from trtkit.quantize.gate.report import Measure

ROWS = [{"text": f"{n}+1=", "choices": [f" {n + 1}", f" {n}{n}", " no"], "label": n % 3} for n in range(7)]
TASK = {
    "task": "sums",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{text}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "label",
    "target_delimiter": "",
    "metric_list": [
        {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
    ],
}


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))

    def write(**changes):
        folder = tmp_path / "tasks"
        folder.mkdir(exist_ok=True)
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
        (folder / "sums.yaml").write_text(yaml.safe_dump({**TASK, **changes}))
        return folder

    return write


def test_equal_answers_leave_the_interval_of_a_loss_open():
    found = loss(np.ones(3), np.ones(3))
    assert (found.value, found.high) == (0, pytest.approx(0.392, abs=1e-3))
    assert loss(np.ones(400), np.zeros(400)).low > 0.98


def test_a_build_without_the_package_ends_before_any_work(trtkit, model, quantized, monkeypatch):  # noqa: F811
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    code, _, err = trtkit("gate", model, quantized, *FEW, "--task", "arc_easy")
    assert (code, "pip install 'trtkit[lm-eval]'" in err, "baseline" in err) == (4, True, False)


def test_scores_that_are_no_numbers_fail_without_a_limit():
    assert not Measure("sums acc loss", loss(np.ones(3), np.full(3, np.nan)), None, upper=True).passes


def test_options_about_tasks_need_one(trtkit, model, quantized):  # noqa: F811
    assert "--task" in trtkit("gate", model, quantized, *FEW, "--max-task-loss", "0.1")[2]


def test_tasks_are_asked_of_both_and_losses_judged(trtkit, model, quantized, tasks):  # noqa: F811
    pytest.importorskip("lm_eval")
    options = (*FEW, "--task", "sums", "--task-folder", tasks(), "--output", "json")
    code, out, err = trtkit("gate", model, quantized, *options)
    report = json.loads(out)
    assert (code, "baseline: sums: done" in err) == (0, True)
    assert [(each["task"], each["metric"], each["num_questions"]) for each in report["tasks"]] == [
        ("sums", "acc", 7),
        ("sums", "acc_norm", 7),
    ]
    right = [_likeliest(model, row) == row["label"] for row in ROWS]
    assert report["tasks"][0]["baseline"] == pytest.approx(np.mean(right))
    code, _, err = trtkit("gate", model, quantized, *options, "--max-task-loss", "0.001")
    assert (code, "sums acc loss" in err) == (6, True)
    assert "Tasks of lm-eval" in trtkit("gate", model, quantized, *options[:-1], "html")[1]


def test_a_build_asks_once_and_again_when_a_task_changes(trtkit, contract, tasks):  # noqa: F811
    pytest.importorskip("lm_eval")
    tasks()
    path = contract(
        "int8-wo", limits={"on": ["checkpoint"], "lm_eval": {"tasks": ["sums"], "folder": "tasks"}}
    )
    found = stages(trtkit, "build", path)
    assert found[0] == 0, found
    facts = next(each[2] for each in found[1] if each[0] == "gate")
    assert "sums acc loss" in facts["measures"]
    assert facts["tasks"][0]["num_questions"] == 7

    def state():
        return next(each[1] for each in stages(trtkit, "build", path, "--dry-run")[1] if each[0] == "gate")

    assert state() == "hit"
    tasks(doc_to_text="{{text}}?")
    assert state() == "build"


def test_plan_and_dry_run_say_that_the_package_is_missing(trtkit, contract, monkeypatch):  # noqa: F811
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    path = contract("int8-wo", limits={"lm_eval": {"tasks": ["sums"]}})
    for verb in (("plan", path), ("build", path, "--dry-run")):
        code, out, err = trtkit(*verb)
        assert (code, "pip install 'trtkit[lm-eval]'" in out + err) == (0, True)
        assert "contract.yaml" in err
    assert trtkit("build", path)[0] == 4


def test_log_likelihoods_are_those_of_the_model(model):  # noqa: F811
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from trtkit.checkpoint.hf import HfCheckpoint
    from trtkit.checkpoint.progress import silent
    from trtkit.quantize.gate.harness_model import HarnessModel
    from trtkit.quantize.gate.model import load_source
    from trtkit.quantize.gate.samples import open_tokenizer

    source = HfCheckpoint.open(model)
    asked = HarnessModel(load_source(source, dtype="float32"), source, open_tokenizer(source), silent, "")
    pairs = [("one ", "two"), ("one", "."), ("one", "!"), ("", "three")]
    instances = [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
    found = [value for value, _ in asked.loglikelihood(instances)]
    start = asked.prefix_token_id
    expected = [_likelihood(model, *pair, start=[] if pair[0] else [start]) for pair in pairs]
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "other"}, "lm-eval has no task sums"),
        ({"output_type": "generate_until"}, "needs generate_until"),
        ({"output_type": "loglikelihood_rolling", "metric_list": [{"metric": "word_perplexity"}]}, "rolling"),
        ({"dataset_path": "nobody/nothing"}, "HF_HUB_OFFLINE=0"),
        ({"dataset_kwargs": {"data_files": {"test": "../rows.jsonl"}}}, "not in the folder of the task"),
        ({"doc_to_text": "{{text * 99}}"}, "the model takes"),
        ({"test_split": "nowhere"}, "sums"),
        ({"doc_to_target": "{{label + 1}}"}, "the right answer 3 is none of 3 choices"),
        ({"doc_to_target": "{{label - 1}}"}, "the right answer '-1' is none of 3 choices"),
    ],
)
def test_tasks_that_cannot_be_asked_are_refused(trtkit, model, quantized, tasks, changes, said):  # noqa: F811
    pytest.importorskip("lm_eval")
    folder = tasks(**changes)
    (folder.parent / "rows.jsonl").write_text((folder / "rows.jsonl").read_text())
    code, _, err = trtkit("gate", model, quantized, *FEW, "--task", "sums", "--task-folder", folder)
    assert (code, said in err, "baseline" in err) == (2, True, False), err


def _likeliest(folder, row):
    return int(np.argmax([_likelihood(folder, row["text"], choice) for choice in row["choices"]]))


def _likelihood(folder, prompt, ending, start=()):
    """By hand, with the model of transformers."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = [*start, *tokenizer.encode(prompt + ending).ids]
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        rows = torch.log_softmax(network(torch.tensor([tokens])).logits[0].double(), -1)
    first = len(start) + len(tokenizer.encode(prompt.rstrip(" ")).ids)
    return sum(float(rows[at - 1, tokens[at]]) for at in range(first, len(tokens)))
