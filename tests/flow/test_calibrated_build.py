"""Builds of formats that take activation ranges: what is calibrated, when, and what follows from it."""

import json
import shutil

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.flow.conftest import calmed, save_tokenizer
from trtkit.contract import load_contract
from trtkit.engine.store import Store
from trtkit.flow.alpha import spelled
from trtkit.flow.build import build
from trtkit.flow.chosen import resolve_chosen


def products(tmp_path, stage):
    return sorted(path.parent for path in (tmp_path / "home" / stage).glob("[!.]*/trtkit-manifest.json"))


def test_ranges_are_recorded_first_and_again_only_when_they_would_differ(trtkit, stages, contract, tmp_path):
    path = contract("int8-sq")
    planned = stages("build", path, "--dry-run")[1]
    assert [each[:2] for each in planned] == [
        ("calibrate", "build"), ("convert", "build"), ("compile", "build"), ("repo", "build"),
    ]  # fmt: skip
    code, built, err = stages("build", path)
    assert code == 0, err
    facts = built[0][2]
    assert (facts["samples_used"], facts["tokens"], facts["resumed_at_layer"]) == (3, 96, 0)
    (ranges,) = products(tmp_path, "calibrate")
    assert trtkit("verify", ranges)[0] == 0
    again = stages("build", path, "--dry-run", "--set", "quantization.alpha=0.6")[1]
    assert [each[:2] for each in again][:2] == [("calibrate", "hit"), ("convert", "build")]
    _, out, _ = stages("build", path, "--explain", "--set", "quantization.calibration.samples=2")
    assert [each[1] for each in out] == ["build"] * 4


def test_what_changed_is_told_in_the_contract_s_words(trtkit, contract):
    path = contract("fp8")
    assert trtkit("build", path)[0] == 0
    _, out, _ = trtkit("build", path, "--explain", "--set", "quantization.calibration.samples=2")
    assert "quantization.calibration.samples: 3 -> 2" in out
    assert "the product of calibrate: " in out


def test_the_settings_of_the_contract_reach_the_checkpoint(stages, contract, tmp_path):
    path = contract("int8-sq", smoothquant="qdq", alpha=0.4, kv_cache="int8", kv_scale="cache")
    code, _, err = stages("build", path)
    assert code == 0, err
    (folder,) = products(tmp_path, "convert")
    block = json.loads((folder / "checkpoint" / "config.json").read_text())["quantization"]
    assert block == {
        "quant_algo": "W8A8_SQ_PER_CHANNEL",
        "kv_cache_quant_algo": "INT8",
        "smoothquant_val": 0.4,
    }


def test_alpha_is_the_one_that_loses_least(stages, contract, tmp_path):
    path = contract("int8-sq", alpha="auto")
    code, built, err = stages("build", path)
    assert code == 0, err
    assert [each[0] for each in built] == ["calibrate", "alpha", "convert", "compile", "repo"]
    facts = built[1][2]
    assert set(facts["kl"]) >= {"0.3", "0.4", "0.5", "0.6", "0.7", "0.8"}
    tried = {name: loss for name, loss in facts["kl"].items() if loss is not None}
    assert tried[spelled(facts["alpha"])] == min(tried.values())
    (folder,) = products(tmp_path, "convert")
    block = json.loads((folder / "checkpoint" / "config.json").read_text())["quantization"]
    assert block["smoothquant_val"] == facts["alpha"]["attention.qkv"]
    assert [path.name for path in products(tmp_path, "alpha")[0].iterdir() if path.is_dir()] == []
    planned = stages("build", path, "--dry-run")[1]
    assert [each[1] for each in planned] == ["hit"] * 5


@pytest.mark.parametrize(("weights", "algorithm"), [("int4-gptq", "W4A16_AWQ"), ("w4a8-awq", "W4A8_AWQ")])
def test_every_int4_format_is_built_for_the_cpu_and_judged_by_what_was_compiled(
    stages,
    contract,
    tiny_llama,  # noqa: F811
    tmp_path,
    weights,
    algorithm,
):
    path = contract(weights, gate={"max_kl": 5, "min_top1": 0.01})
    shutil.rmtree(tmp_path / "model")
    save_tokenizer(tiny_llama(name="model", edit=calmed, hidden_size=128, intermediate_size=256))
    code, built, err = stages("build", path)
    assert code == 0, err
    assert [each[0] for each in built] == ["calibrate", "convert", "gate", "compile", "gate-engine", "repo"]
    checkpoint, engine = built[2][2], built[4][2]
    assert checkpoint["format"] == engine["format"] == f"{weights} ({algorithm})"
    assert engine["executor"] == "OpenVINO, the engine itself"
    # The engine computes what the gate computed from the checkpoint.
    assert engine["measures"]["KL"]["value"] == pytest.approx(checkpoint["measures"]["KL"]["value"], rel=0.2)


def test_one_calibration_serves_the_whole_chain_and_a_chain_without_end_publishes_nothing(
    trtkit, contract, tmp_path
):
    path = contract("int8-sq", fallback=["fp8", "int8-wo"], gate={"max_kl": 1e-9})
    code, _, err = trtkit("build", path)
    assert code == 6
    assert all(f"{name}): KL" in err for name in ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "FP8", "W8A16"))
    assert len(products(tmp_path, "calibrate")) == 1
    assert len(products(tmp_path, "convert")) == len(products(tmp_path, "gate")) == 3
    assert not (tmp_path / "home" / "compile").exists()
    assert not (tmp_path / "home" / "repo").exists()


@pytest.mark.parametrize("policy", ["off", "redo"])
def test_formats_share_it_without_the_store_too(stages, contract, policy):
    path = contract("int8-sq", fallback=["fp8", "none"], gate={"max_kl": 1e-5})
    code, built, err = stages("build", path, "--cache", policy)
    assert code == 0, err
    assert [each[1] for each in built if each[0] == "calibrate"] == [False, True]


def test_who_only_plans_plans_for_the_format_that_was_built(trtkit, stages, contract, tmp_path):
    path = contract("int8-sq", fallback=["fp8", "none"], gate={"max_kl": 1e-5})
    repo = ("repo", path, "-o", tmp_path / "repo")
    assert "no build of this contract is in the store: planned for int8-sq" in trtkit(*repo)[2]
    code, built, err = stages("build", path)
    assert code == 0, err
    assert [each[:2] for each in built if each[0] == "calibrate"] == [
        ("calibrate", False),
        ("calibrate", True),
    ]
    assert "no build of this contract" not in trtkit(*repo)[2]
    _, plan = resolve_chosen(load_contract(path), Store(tmp_path / "home"), lambda *_: None)
    assert plan.quantization.weights == "none"
    # Another contract than the one that was built.
    other = load_contract(path, ["quantization.calibration.samples=2"])
    _, plan = resolve_chosen(other, Store(tmp_path / "home"), lambda *_: None)
    assert plan.quantization.weights == "int8-sq"
    assert "planned for int8-sq" in plan.warnings[-1].message


def test_a_build_that_was_interrupted_goes_on_with_the_layer_it_was_in(contract, tmp_path):
    file, store = load_contract(contract("fp8")), Store(tmp_path / "home")

    def stop(stage, done, total):
        if (stage, done) == ("calibrate", 4):  # layers of 3 samples
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(file, store, stop)
    assert products(tmp_path, "calibrate") == []
    built = build(file, store, lambda *_: None)
    assert built.products[0].facts["resumed_at_layer"] == 1
    assert [path.name for path in (tmp_path / "home" / "calibrate").glob(".*")] == []


def test_what_is_lacking_is_told_before_anything_is_done(trtkit, contract, tmp_path, monkeypatch):
    monkeypatch.setattr("trtkit.flow.calibrate.MODEL_PACKAGES", ("torch", "no_such_package"))
    path = contract("int8-wo", fallback=["fp8"], gate={})
    code, _, err = trtkit("build", path)
    assert code == 4
    assert "calibration needs no_such_package" in err
    assert "trtkit[calib]" in err
    assert not (tmp_path / "home").exists()
    code, _, err = trtkit("build", path, "--dry-run")
    assert (code, "warning: " in err, "trtkit[calib]" in err) == (0, True, True)


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"weights": "fp8", "calibration": {"data": "nowhere.txt"}}, "no such file or folder"),
        (
            {"weights": "fp8", "calibration": {"data": "texts.jsonl", "column": "body", "max_length": 9}},
            "no field 'body'",
        ),
        ({"weights": "fp8", "calibration": {}}, "fix: quantization.calibration.max_length: 128"),
        (
            {"weights": "int4-awq", "group_size": 128, "calibration": {"max_length": 9}},
            "no multiple of 128",
        ),
        ({"weights": "int8-wo", "alpha": 0.4}, "quantization.alpha"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_anything_is_done(
    trtkit, contract, tmp_path, quantization, said
):
    (tmp_path / "texts.jsonl").write_text('{"text": "one two three"}\n')
    path = contract("none")
    content = yaml.safe_load(path.read_text()) | {"quantization": quantization}
    path.write_text(yaml.safe_dump(content))
    code, _, err = trtkit("build", path)
    assert code == 2
    assert said in err
    assert not (tmp_path / "home").exists()


def test_what_could_not_be_written_is_refused_before_it_is_calibrated(trtkit, contract, tmp_path):
    code, _, err = trtkit("build", contract("int4-awq"), "--set", "model.dtype=float32")
    assert code == 2
    assert "compute in 16 bits" in err
    assert not (tmp_path / "home").exists()


def test_layers_of_several_formats_are_built_and_judged(stages, contract, tmp_path):
    patterns = {"exclude": ["lm_head", "*.0.attention*"], "overrides": {"*.1.mlp*": "none"}}
    code, built, err = stages("build", contract("fp8", gate={"max_kl": 5, "min_top1": 0.01}, **patterns))
    assert code == 0, err
    assert [each[0] for each in built][:3] == ["calibrate", "convert", "gate"]
    (folder,) = products(tmp_path, "convert")
    block = json.loads((folder / "checkpoint" / "config.json").read_text())["quantization"]
    assert {"transformer.layers.0.attention.qkv", "transformer.layers.1.mlp.fc"} < {*block["exclude_modules"]}
    refused, _, err = stages("build", contract("fp8", exclude=["lm_head", "*.mlpp*"]))
    assert refused == 2
    assert "quantization.exclude: '*.mlpp*' matches no layer" in err
