import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.flow.conftest import save_tokenizer
from trtkit.cli.console import plain_progress
from trtkit.errors import (
    DriftError,
    EnvironmentLacks,
    InputError,
    StageError,
    StartError,
    TrtkitError,
    VerificationError,
)

VERBS = (
    "plan",
    "convert",
    "verify",
    "inspect",
    "build",
    "cache",
    "repo",
    "serve",
    "proxy",
    "health",
    "up",
    "doctor",
    "export",
    "simulate",
    "explain",
)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(trtkit, verb):
    code, out, _ = trtkit(verb, "--help")
    assert code == 0
    assert "Usage" in out


def test_help_lists_verbs_and_exit_codes(trtkit):
    _, out, _ = trtkit("--help")
    assert all(verb in out for verb in VERBS)
    assert "7 drift" in out


def test_a_wrong_option_is_a_usage_error(trtkit):
    assert trtkit("plan", "--no-such-option")[0] == 2


def test_a_wrong_contract_is_explained_without_traceback(trtkit, tmp_path):
    path = tmp_path / "contract.yaml"
    path.write_text("name: x\nmodel: {source: y}\nclasses: {a: {priority: 1, ttft: 3}}\n")
    code, out, err = trtkit("plan", path)
    assert (code, out) == (2, "")
    assert f"{path}:3: classes.a.ttft: unknown key" in err
    assert "Traceback" not in err


def test_json_output_is_one_document_even_for_errors(trtkit, tmp_path):
    code, out, _ = trtkit("plan", tmp_path / "absent.yaml", "--output", "json")
    assert code == 2
    assert json.loads(out)["error"]["exit_code"] == 2


def test_usage_errors_are_documents_too(trtkit):
    code, out, err = trtkit("plan", "--no-such-option", "--output", "json")
    assert code == 2
    assert "--no-such-option" in json.loads(out)["error"]["message"]
    assert "--no-such-option" in err


def test_doctor_gives_one_document_when_something_is_missing(trtkit, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRTKIT_HOME", str(tmp_path / "file"))
    code, out, _ = trtkit("doctor", "--output", "json")
    document = json.loads(out)
    assert (code, document["error"]["exit_code"]) == (4, 4)
    assert "store" in document["error"]["message"]
    assert [each["name"] for each in document["findings"] if not each["ok"]][-1:] == ["store"]


def test_doctor_names_a_python_without_the_compiler_that_somebody_has_named(trtkit, monkeypatch):
    monkeypatch.setenv("TRTKIT_RTX_PYTHON", "/bin/echo")
    code, out, _ = trtkit("doctor", "--output", "json")
    lacks = [each["name"] for each in json.loads(out)["findings"] if not each["ok"]]
    assert (code, "rtx compiler" in lacks) == (4, True)


@pytest.mark.parametrize("arguments", [("export", "schema"), ("doctor", "--output", "json"), ("--help",)])
def test_a_full_stdout_is_one_line(arguments):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "trtkit", *arguments]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode not in {0, 120}
    assert "No space left on device" in run.stderr
    assert "Traceback" not in run.stderr
    assert "Exception ignored" not in run.stderr


@pytest.mark.parametrize("shell", ["exec 2>&-; ", "export PYTHONUTF8=0 PYTHONIOENCODING=ascii LC_ALL=C; "])
def test_output_that_takes_no_letter_or_no_message_does_not_end_a_command(tmp_path, shell):
    command = f'{shell} exec "{sys.executable}" -m trtkit cache path'
    env = os.environ | {"TRTKIT_HOME": str(tmp_path / "ünï")}
    run = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False, env=env)
    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout.startswith(str(tmp_path).encode())


def into_a_closed_pipe(*arguments, **env):
    """Run with a stdout that nobody reads; return exit code and stderr."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "trtkit", *map(str, arguments)]
    run = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=os.environ | env
    )
    os.close(write)
    return run.returncode, run.stderr


@pytest.mark.parametrize("arguments", [("export", "schema"), ("--help",), ("cache", "ls"), ("cache", "path")])
def test_a_reader_that_left_is_no_error(tmp_path, arguments):
    assert into_a_closed_pipe(*arguments, TRTKIT_HOME=str(tmp_path)) == (0, "")


def test_a_failure_keeps_its_exit_code_when_nobody_reads_it(tmp_path):
    assert into_a_closed_pipe("plan", tmp_path / "absent.yaml", "--output", "json")[0] == 2
    (tmp_path / "config.json").write_text('{"architecture": "x", "quantization": {}}')
    assert into_a_closed_pipe("verify", tmp_path, "--output", "json")[0] == 6


def test_errors_of_the_system_have_a_fix(trtkit, tmp_path):
    contract = Path(__file__).parents[1] / "plan" / "models" / "llama-3.1-8b.json"
    page = tmp_path / "absent" / "page.html"
    code, _, err = trtkit("plan", contract, "--compare", "--html", page)
    assert (code, "No such file or directory" in err, "fix: make the folder first" in err) == (4, True, True)


INTERRUPTED = """
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == wanted:
            raise KeyboardInterrupt
wanted = sys.argv.pop()
sys.meta_path.insert(0, Interrupted())
from trtkit.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "trtkit.cli.up", "trtkit.flow.doctor"])
def test_an_interrupt_is_quiet_from_the_first_import_on(module):
    command = [sys.executable, "-c", INTERRUPTED, "doctor", module]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "fault",
    [
        "ImportError('libtorch_cpu.so: undefined symbol')",
        "OSError('no libcudart.so')",
        "RuntimeError('built for another numpy')",
        "ValueError('numpy.dtype size changed')",
    ],
)
def test_a_library_that_cannot_be_loaded_is_what_the_environment_lacks(tmp_path, tiny_llama, fault):  # noqa: F811
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text(f"raise {fault}\n")
    source = tiny_llama()
    save_tokenizer(source)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "trtkit",
            "calibrate",
            source,
            "-o",
            tmp_path / "ranges",
            "--max-length",
            "64",
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "broken")},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 4, done.stderr
    assert "torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_step_is_told_once(capsys):
    report = plain_progress()
    for done in (0, 5, 10, 10, 10):
        report("download", done, 10)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "download ...",
        "download",
    ]


def test_a_long_step_says_how_far_it_is(capsys):
    times = iter([0.0, 9.0, 10.0, 19.0, 40.0, 41.0])
    report = plain_progress(lambda: next(times))
    for done in (0, 1, 2, 3, 8, 10):
        report("calibrate", done, 10)
    assert capsys.readouterr().err.splitlines() == [
        "calibrate ...",
        "calibrate: 20%, about 40 s left",
        "calibrate: 80%, about 10 s left",
        "calibrate: done in 41.0 s",
    ]


def test_each_kind_of_error_has_its_own_exit_code():
    kinds = [TrtkitError, InputError, StartError, EnvironmentLacks, StageError, VerificationError, DriftError]
    assert [kind.exit_code for kind in kinds] == [1, 2, 3, 4, 5, 6, 7]


def test_the_command_line_imports_no_heavy_library():
    code = "import sys, trtkit.cli; print(*sorted(set(sys.modules) & set(sys.argv[1:])))"
    heavy = [
        "pydantic",
        "yaml",
        "grpc",
        "openvino",
        "openvino_genai",
        "numpy",
        "tritonclient",
        "tokenizers",
        "rich.progress",
        "torch",
    ]
    run = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_the_schema_check_notices_drift(trtkit, monkeypatch, tmp_path):
    from trtkit.contract import schema

    assert trtkit("export", "schema", "--check")[0] == 0
    stale = tmp_path / "schema.json"
    stale.write_text("{}")
    monkeypatch.setattr(schema, "SCHEMA_FILE", stale)
    code, _, err = trtkit("export", "schema", "--check")
    assert code == 7
    assert "fix: run: trtkit export schema" in err
