import json
import subprocess
import sys
from pathlib import Path

import pytest

from trtkit.contract import load_contract
from trtkit.contract.schema import SCHEMA_FILE, contract_schema

CONTRACTS = sorted((Path(__file__).parents[2] / "build_configs").glob("*.yaml"))


def test_the_committed_schema_is_up_to_date():
    assert SCHEMA_FILE.read_text() == contract_schema()


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_shipped_contracts_load_and_name_their_schema(path):
    load_contract(path)
    modeline = path.read_text().splitlines()[0]
    assert (path.parent / modeline.partition("$schema=")[2]).resolve() == SCHEMA_FILE.resolve()


def test_an_independent_validator_agrees(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(CONTRACTS[0].read_text().replace("ttft_ms: 1500", "ttft: 1500"))
    check = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA_FILE)]
    assert subprocess.run([*check, *map(str, CONTRACTS)], check=False).returncode == 0
    assert subprocess.run([*check, str(bad)], check=False, capture_output=True).returncode == 1


def test_every_key_is_described():
    schema = json.loads(contract_schema())
    bare = [
        f"{name}.{key}"
        for name, section in schema["$defs"].items()
        for key, field in section.get("properties", {}).items()
        if "description" not in field and "$ref" not in field
    ]
    assert bare == []
