"""Formats that are calibrated, judged and fallen back to, as a user serves them."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.e2e.conftest import Machine
from tests.flow.conftest import contract, model, tiny_llama  # noqa: F401 - fixtures

LIMIT = "quantization.gate.max_kl={}"
BEST = "int8-wo (W8A16)"


def gates(home):
    """Return the facts of every gate, by format."""
    found = [json.loads(path.read_text())["facts"] for path in home.glob("gate/*/trtkit-manifest.json")]
    return {each["format"]: each for each in found}


def up(machine, path, limit):
    run = machine.run(
        "up", path, "--set", LIMIT.format(limit), "--requests", 3, "--rate", 9, "--output", "json"
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert sum(row["ok"] for row in result["classes"]) == 3
    (manifest,) = [json.loads(path.read_text()) for path in machine.home.glob("repo/*/trtkit-manifest.json")]
    return run.stderr, manifest["gate"]["format"]


@pytest.mark.slow
def test_the_gate_decides_what_is_served(trtkit, contract, tmp_path):  # noqa: F811
    path = contract("int8-sq", fallback=["fp8", "int8-wo"], gate={"min_top1": 0.5})
    home = tmp_path / "home"
    code, _, err = trtkit("build", path, "--set", LIMIT.format(1e-9))
    assert code == 6, err
    assert not (home / "repo").exists()
    tried = gates(home)
    assert list(tried) != []
    limit = {name: facts["measures"]["KL"]["high"] for name, facts in tried.items()}
    best = limit.pop(BEST)
    between = (best * min(limit.values())) ** 0.5

    err, served = up(Machine(home), path, between)
    assert (err.count("the gate refused"), served) == (2, BEST)
