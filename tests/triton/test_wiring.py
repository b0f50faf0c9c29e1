"""Ensembles: the lint's verdict is that of a real Triton."""

import re

import pytest

from trtkit.errors import StartError
from trtkit.triton.lint import lint
from trtkit.triton.server import TritonServer

X, Y = ("X", "INT32", "[1]"), ("Y", "INT32", "[1]")
Z, W = ("Z", "INT32", "[-1]"), ("W", "INT32", "[1]")
STEP = ("a", {"x": "X"}, {"z": "Z"})
SOUND = {
    "plain": ([X], [Z], [STEP]),
    "any_order": ([X], [Z], [("a", {"x": "T"}, {"z": "Z"}), ("a", {"x": "X"}, {"z": "T"})]),
    "fixed_meets_any_size": ([X], [W], [("a", {"x": "X"}, {"z": "W"})]),
    "batch_of_a_step": ([("X", "INT32", "[2]")], [("Z", "INT32", "[2]")], [("batching", *STEP[1:])]),
}
BROKEN = {
    "needed_input": ([X], [Z], [("a", {"y": "X"}, {"z": "Z"})], "needs 'x', which nothing is mapped to"),
    "spare_input": ([X, Y], [Z], [STEP], "nothing reads 'Y'"),
    "spare_tensor": ([X], [Z], [STEP, ("a", {"x": "X"}, {"z": "U"})], "nothing reads 'U'"),
    "no_output": ([X], [Z, W], [STEP], "nothing writes 'W'"),
    "no_source": ([X], [Z], [("a", {"x": "X", "y": "Q"}, {"z": "Z"})], "nothing writes 'Q'"),
    "twice": ([X], [Z], [STEP, STEP], "'Z' is written 2 times"),
    "circle": (
        [X],
        [Z],
        [
            ("a", {"x": "X", "y": "T"}, {"z": "S"}),
            ("a", {"x": "S"}, {"z": "T"}),
            ("a", {"x": "S"}, {"z": "Z"}),
        ],
        "'S', 'T', 'Z' cannot be had",
    ),
    "itself": ([X], [Z], [("itself", {"X": "X"}, {"Z": "Z"})], "leads back to this ensemble"),
    "type": ([X], [Z], [("floats", {"x": "X"}, {"z": "Z"})], "differ in data type"),
    "shape": ([X], [Z], [("pairs", {"x": "X"}, {"z": "Z"})], "differ in shape: [1] and [2]"),
    "no_steps": ([X], [Z], [], "without steps"),
    "reads_nothing": ([X], [Z], [("a", {}, {"z": "Z"})], "has no input_map"),
    "writes_nothing": ([X], [], [("a", {"x": "X"}, {})], "has no output_map"),
    "no_version": ([X], [Z], [(*STEP, 7)], "has no version 7"),
    "stranger": ([X], [Z], [("nobody", {"x": "X"}, {"z": "Z"})], "no model 'nobody'"),
}
MODELS = {
    "a": ([("x", "INT32", "[1]"), ("y", "INT32", "[1]", "optional: true")], [("z", "INT32", "[-1]")], 0),
    "pairs": ([("x", "INT32", "[2]")], [("z", "INT32", "[2]")], 0),
    "batching": ([("x", "INT32", "[2]")], [("z", "INT32", "[2]")], 4),
    "floats": ([("x", "FP32", "[1]")], [("z", "FP32", "[-1]")], 0),
}
CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def tensors(inputs, outputs):
    return "".join(
        f'{side} {{ name: "{name}" data_type: TYPE_{kind} dims: {dims} {" ".join(more)} }}\n'
        for side, several in (("input", inputs), ("output", outputs))
        for name, kind, dims, *more in several
    )


def steps(several):
    def pairs(side, mapping):
        return "".join(f'{side} {{ key: "{inner}" value: "{outer}" }} ' for inner, outer in mapping.items())

    return "".join(
        f'step {{ model_name: "{name}" model_version: {next(iter(version), -1)} '
        f"{pairs('input_map', read)} {pairs('output_map', written)} }}\n"
        for name, read, written, *version in several
    )


def save(folder, config):
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f'name: "{folder.name}"\n{config}')


@pytest.fixture
def repo(tmp_path):
    for name, (inputs, outputs, batch) in MODELS.items():
        save(
            tmp_path / "repo" / name, f'backend: "python" max_batch_size: {batch}\n{tensors(inputs, outputs)}'
        )
        (tmp_path / "repo" / name / "1" / "model.py").write_text(CODE)
    for name, (inputs, outputs, several, *_) in {**SOUND, **BROKEN}.items():
        graph = f"ensemble_scheduling {{\n{steps(several)}}}\n"
        save(tmp_path / "repo" / name, f'platform: "ensemble"\n{tensors(inputs, outputs)}{graph}')
    return tmp_path / "repo"


def test_what_is_wrong_with_an_ensemble_is_named(repo):
    told = {(problem.file.split("/")[-2], problem.message) for problem in lint(repo)}
    for name, (*_, message) in BROKEN.items():
        assert any(model == name and message in text for model, text in told), (name, told)


def test_triton_loads_the_ensembles_that_have_no_problem_and_no_others(repo, tmp_path):
    server = TritonServer(repo, log_file=tmp_path / "triton.log")
    with pytest.raises(StartError), server:
        server.wait_ready()
    ready = set(re.findall(r"^\| (\w+) +\| 1 +\| READY", (tmp_path / "triton.log").read_text(), re.MULTILINE))
    faulty = {problem.file.split("/")[-2] for problem in lint(repo)}
    assert ready == set(MODELS) | set(SOUND)
    assert ready == {path.name for path in repo.iterdir()} - faulty
