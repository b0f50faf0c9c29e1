"""``trtkit verify --against``: targets that an engine is for, and what builds one for those that it is not for."""

import json
import shlex
from pathlib import Path

import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.cli.engines import TARGET, built
from trtkit.contract.load import parse_contract
from trtkit.errors import Severity
from trtkit.flow.against import compare, parse_target

CHAT = "name: chat\nmodel: {source: .}\nclasses: {chat: {priority: 1}}\nengine: {backend: tensorrt}\n"


@pytest.fixture
def verify(trtkit):
    """Compare a folder with targets; return exit code, stdout and stderr."""

    def run(folder, *against, output="text"):
        names = [word for each in against for word in ("--against", each)]
        return trtkit("verify", folder, *names, "--output", output)

    return run


def test_an_engine_as_it_was_built_is_sound_for_its_target(verify, engine):
    assert verify(engine, "h100-sxm", "1.1")[0] == 0
    assert verify(engine, "90", "26.02")[0] == 0


@pytest.mark.parametrize(
    ("against", "told", "changed"),
    [
        (["l40s"], "SM 89", ["engine.gpu=l40s"]),
        (["SM 89"], "SM 89", ["engine.gpu="]),
        (["8.9"], "SM 89", ["engine.gpu="]),
        (["sm_80"], "SM 80", ["engine.gpu="]),
        (["1.2"], "TensorRT-LLM 1.2.x", ["engine.gpu=h100-sxm", "engine.trtllm=1.2"]),
        (["25.06"], "TensorRT-LLM 0.20.0", ["engine.trtllm=0.20"]),
        (["l40s", "1.2"], "SM 89, TensorRT-LLM 1.2.x", ["engine.gpu=l40s", "engine.trtllm=1.2"]),
        (["cpu"], "the CPU", ["engine.backend=cpu", "engine.gpu=null"]),
    ],
)
def test_another_target_is_refused_with_the_command_that_builds_for_it(
    verify, engine, against, told, changed
):
    code, _, err = verify(engine, *against)
    assert code == 6
    (line,) = [line for line in err.splitlines() if "built for" in line]
    assert "SM 90, TensorRT-LLM 1.1.0, " in line.partition("target has")[0]
    assert told in line.partition("target has")[2]
    words = shlex.split(err.partition("fix: ")[2].splitlines()[0])
    assert words[:3] == ["trtkit", "build", "/contracts/chat.yaml"]
    assert [any(word.startswith(each) for word in words) for each in changed] == [True] * len(changed)
    assert len([word for word in words if word.startswith("engine.gpu=")]) == 1
    contract = parse_contract(CHAT, Path("chat.yaml"), [word for word in words if "=" in word]).contract
    taken = {f"engine.trtllm={contract.engine.trtllm}", f"engine.gpu={contract.engine.gpu or 'null'}"}
    assert {
        each for each in changed if each.startswith(("engine.trtllm", "engine.gpu")) and each[-1] != "="
    } <= taken


def test_who_moves_from_the_cpu_to_a_release_is_told_that_it_takes_a_gpu(verify, foreign):
    (foreign / "config.json").write_text('{"backend": "cpu"}')
    assert "--set engine.gpu=GPU --set engine.trtllm=1.2" in verify(foreign, "1.2")[2]


def test_another_gpu_of_the_same_sm_is_a_warning(verify, engine):
    code, _, err = verify(engine, "h200")
    assert code == 0
    assert "warning" in err
    assert "kernels that were chosen on another GPU" in err


def test_what_an_engine_does_not_say_is_not_taken_for_a_yes(verify, foreign):
    assert verify(foreign, "1.1")[0] == 0
    code, _, err = verify(foreign, "90")
    assert code == 6
    assert "does not say which SM it was built for" in err


def version(folder, text):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"version": text}))


@pytest.mark.parametrize(
    ("built", "against", "code"),
    [
        ("1.2.0", "1.2.0", 0),
        ("1.2.0", "1.2.1", 6),
        ("1.2.0", "26.03", 0),
        ("1.2.0", "26.07", 6),
        ("1.2.1", "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3", 0),
        ("1.0.0", "25.11", 6),
        ("0.18.0", "25.04", 6),
        ("0.21.0+cu12", "0.21", 0),
        ("0.21.0+cu12", "0.21.0", 0),
        ("0.21.0+cu12", "0.21.1", 6),
        ("1.2.0rc3", "1.2.0", 6),
        ("1.2.0rc3", "1.2.0rc3", 0),
        ("1.3.0", "1.2", 6),
    ],
)
def test_an_engine_is_loaded_by_the_release_that_built_it(verify, foreign, built, against, code):
    version(foreign, built)
    assert verify(foreign, against)[0] == code


def test_another_release_is_refused_with_the_image_that_has_it(verify, engine):
    err = verify(engine, "1.1.1")[2]
    assert "release: built for" in err
    err = verify(engine, "26.03")[2]
    assert "engine.trtllm=1.2  # in nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3" in err


def test_a_pre_release_is_told_where_only_the_line_is_asked_for(verify, foreign):
    version(foreign, "1.2.0rc3")
    code, _, err = verify(foreign, "1.2")
    assert (code, "pre-release 1.2.0rc3" in err, "--against 1.2.0rc3" in err) == (0, True, True)


SOFTWARE = [
    (["tensorrt=10.13.3"], "", 0),
    (["tensorrt 10.13.3.9", "driver=580.95.05", "1.1.0"], "", 0),
    (["driver=590.44"], "", 0),
    (["26.02", "driver=580.95"], "", 0),
    (["26.02", "tensorrt=10.13.3"], "", 0),
    (["tensorrt=10.14.1"], "TensorRT 10.13.3, target has TensorRT 10.14.1", 6),
    (["tensorrt=10.13.2.9"], "TensorRT 10.13.3, target has TensorRT 10.13.2.9", 6),
    (["tensorrt-rtx=1.7.1"], "TensorRT 10.13.3, target has TensorRT for RTX 1.7.1", 6),
    (["1.1", "driver=580.88"], "driver 580.95 or newer, target has TensorRT-LLM 1.1.x, driver 580.88", 6),
    (
        ["h100-sxm", "driver=575.57.8"],
        "driver 580.95 or newer, target has H100 SXM, SM 90, driver 575.57.8",
        6,
    ),
]


@pytest.mark.parametrize(("against", "said", "code"), SOFTWARE)
def test_an_engine_runs_on_its_tensorrt_and_on_no_older_driver(verify, engine, against, said, code):
    found, _, err = verify(engine, *against)
    assert (found, said in err) == (code, True), err
    assert ("built for" in err) == bool(code)


@pytest.mark.parametrize(
    ("against", "fix"),
    [
        (["tensorrt=10.14.1"], "--set engine.trtllm=1.2  # in nvcr.io/nvidia/tritonserver:26.07-trtllm"),
        (["tensorrt=11.4.0"], "fix: use TensorRT 10.13.3 there: no image"),
        (["driver=575.57"], "engine.trtllm=1.0  # in nvcr.io/nvidia/tritonserver:25.10-trtllm"),
        (["driver=575.57"], "fix: install driver 580.95 or newer there, or build for it: trtkit build"),
        (["driver=550.1"], "fix: install driver 580.95 or newer there: no image"),
        (["tensorrt-rtx=1.7.1"], "engine.backend=rtx  # with tensorrt-rtx-cu13 1.7.1"),
    ],
)
def test_what_builds_for_other_software_is_told(verify, engine, against, fix):
    assert fix in verify(engine, *against)[2]


def test_no_command_is_told_for_a_tensorrt_that_no_release_has(verify, foreign):
    (foreign / "config.json").write_text('{"backend": "cpu"}')
    assert "fix: no image of TensorRT-LLM" in verify(foreign, "tensorrt=11.4.0")[2]
    known = verify(foreign, "tensorrt=10.13.3")[2]
    assert "--set engine.backend=tensorrt --set engine.gpu=GPU --set engine.trtllm=1.1" in known


def test_software_that_one_side_does_not_say_is_told(verify, engine, foreign):
    out = verify(engine, "h100-sxm")[1]
    open_ = "not compared, as the target does not say: TensorRT (10.13.3 built it), driver (580.95 or newer)"
    assert open_ in out
    out = verify(engine, "26.02", output="json")[1]
    assert json.loads(out)["not_compared"] == ["driver (580.95 or newer)"]
    version(foreign, "1.2.0rc3")  # of no image
    code, _, err = verify(foreign, "tensorrt=10.14.1", "driver=590.44")
    assert (code, "which TensorRT built it" in err, "which driver it needs" in err) == (0, True, True)


def test_what_the_manifest_planned_counts_only_where_that_release_built_it(verify, tmp_path):
    planned = TARGET | {"release": "1.1.0", "tensorrt": "10.13.9", "driver": "581.1"}
    for release, tensorrt in (("1.1.0", "10.13.9"), ("1.1.1", "10.13.3")):
        path = built(tmp_path / release, planned | {"release": release})
        assert verify(path, f"tensorrt={tensorrt}")[0] == 0
        assert verify(path, "tensorrt=10.13.4")[0] == 6


def test_an_engine_of_tensorrt_for_rtx_runs_on_the_version_that_built_it(tmp_path):
    def write(out):
        (out / "config.json").write_text('{"backend": "rtx", "build_config": {}}')
        return {}

    target = {"backend": "rtx", "gpu": "l40s", "sm": 89, "sms": [89], "tensorrt": None, "driver": None}
    path = built(tmp_path / "store", target, write, tools={"tensorrt_rtx": "1.7.1.116"})
    for release, same in (("1.7.1.116", True), ("1.7.1", True), ("1.7.2", False)):
        problems = compare(path, parse_target([f"tensorrt-rtx={release}"])).problems
        assert [each.key for each in problems] == ([] if same else ["TensorRT"])
    (problem,) = compare(path, parse_target(["tensorrt=10.14.1"])).problems
    assert problem.key == "back end and TensorRT"
    assert {"engine.backend=tensorrt", "engine.targets=null"} < set(shlex.split(problem.hint))
    (problem,) = compare(path, parse_target(["89", "driver=590.44"])).problems
    assert (problem.severity, problem.message[:32]) == (Severity.WARNING, "nothing says which driver it nee")


@pytest.mark.parametrize("missing", ["backend", "gpu", "sm", "trtllm", "image"])
def test_a_manifest_without_a_field_says_that_it_does_not_say(verify, tmp_path, missing):
    target = {name: value for name, value in TARGET.items() if name != missing}
    code, _, err = verify(built(tmp_path / "store", target), "h100-sxm", "1.1")
    said = {"backend": "does not say which back end", "sm": "does not say which SM"}
    assert (code, said.get(missing, "") in err) == (6 if missing in said else 0, True)


def test_a_manifest_that_the_engine_contradicts_is_told(verify, tmp_path):
    code, _, err = verify(built(tmp_path / "store", TARGET | {"trtllm": "1.2"}), "h100-sxm")
    assert (code, "the manifest says TensorRT-LLM 1.2, the engine 1.1.0" in err) == (6, True)


def test_a_checkpoint_is_compared_with_what_the_gpu_runs(trtkit, verify, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    trtkit("convert", tiny_llama(), "-o", out)
    code, told, _ = verify(out, "a100-80")
    assert (code, "for A100" in told, "compared: weights, KV cache" in told) == (0, True, True)
    config = json.loads((out / "config.json").read_text())
    config["trtkit"] = {"target_sm": 80, "layout": "interleaved"}
    (out / "config.json").write_text(json.dumps(config))
    code, _, err = verify(out, "90")
    assert code == 6
    assert "built for the layout of SM 80, target has SM 90" in err
    assert "--target-sm 90" in err
    assert verify(out, "86")[0] == 0
