import subprocess
import sys

import pytest

from trtkit.errors import (
    DriftError,
    EnvironmentLacks,
    InputError,
    StageError,
    StartError,
    TrtkitError,
    VerificationError,
)

VERBS = ("plan", "convert", "verify", "build", "repo", "serve", "proxy", "up", "doctor", "export")


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
    import json

    code, out, _ = trtkit("plan", tmp_path / "absent.yaml", "--output", "json")
    assert code == 2
    assert json.loads(out)["error"]["exit_code"] == 2


def test_each_kind_of_error_has_its_own_exit_code():
    kinds = [TrtkitError, InputError, StartError, EnvironmentLacks, StageError, VerificationError, DriftError]
    assert [kind.exit_code for kind in kinds] == [1, 2, 3, 4, 5, 6, 7]


def test_the_command_line_imports_no_heavy_library():
    code = "import sys, trtkit.cli; print(*sorted(set(sys.modules) & set(sys.argv[1:])))"
    heavy = [
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
