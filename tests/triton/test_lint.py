import pytest

from trtkit.errors import Severity
from trtkit.triton.folder import install, write
from trtkit.triton.lint import lint
from trtkit.triton.repository import render


@pytest.fixture(params=["cpu", "tensorrt"])
def any_repo(request, tmp_path, plan, tokenizer_dir):
    return place(tmp_path, render(plan, dialect=request.param), tokenizer_dir)


@pytest.fixture
def repo(tmp_path, plan, tokenizer_dir):
    return place(tmp_path, render(plan), tokenizer_dir)


def place(tmp_path, files, tokenizer_dir):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/config.json").write_text("{}")
    write(files, tmp_path / "repo")
    install(tmp_path / "repo", tmp_path / "engine", tokenizer_dir)
    return tmp_path / "repo"


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_what_trtkit_renders_has_no_problem(any_repo):
    assert lint(any_repo) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("tensorrt_llm", 'name: "tensorrt_llm"', 'name: "other"', "the folder is 'tensorrt_llm'"),
        ("tensorrt_llm", "max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}", "integer"),
        ("tensorrt_llm", 'string_value: "engine"', 'string_value: "${engine_dir}"', "unfilled placeholder"),
        ("tensorrt_llm", "max_batch_size", "max_bach_size", "max_bach_size"),
        ("tensorrt_llm", "decoupled: true", "decoupled: false", "disagree"),
        (
            "preprocessing",
            'string_value: "tokenizer"',
            'string_value: "elsewhere"',
            "elsewhere does not exist",
        ),
        ("preprocessing", "count: 2", "count: 1", "one instance"),
        ("ensemble", 'model_name: "preprocessing"', 'model_name: "pre"', "no model 'pre'"),
        ("ensemble", 'key: "QUERY"', 'key: "QUESTION"', "no input 'QUESTION'"),
        ("postprocessing", "data_type: TYPE_INT32", "data_type: TYPE_INT64", "differ in data type"),
    ],
)
def test_each_mistake_is_named_with_its_file(repo, file, old, new, message):
    edit(repo / file / "config.pbtxt", old, new)
    assert any(message in problem.message and str(repo) in problem.file for problem in lint(repo)), lint(repo)


def test_missing_files_are_named(repo):
    (repo / "tensorrt_llm_bls/1/model.py").unlink()
    (repo / "preprocessing/1/tokenizer/tokenizer.json").unlink()
    (repo / "ensemble/1/.gitkeep").unlink()
    (repo / "ensemble/1").rmdir()
    messages = "\n".join(str(problem) for problem in lint(repo))
    assert "model.py is missing" in messages
    assert "no tokenizer.json" in messages
    assert "no version directory" in messages


def test_parse_errors_carry_the_line(repo):
    edit(repo / "ensemble/config.pbtxt", 'platform: "ensemble"', "platform: ensemble")
    (problem,) = [problem for problem in lint(repo) if problem.line]
    lines = (repo / "ensemble/config.pbtxt").read_text().splitlines()
    assert "platform" in lines[problem.line - 1]


def test_an_empty_folder_is_no_repository(tmp_path):
    assert [problem.severity for problem in lint(tmp_path)] == [Severity.ERROR]
