"""The model repository at the root of the project is what trtkit writes today."""

from pathlib import Path

import pytest

from trtkit.contract import load_contract
from trtkit.plan import Machine, make_plan
from trtkit.triton.folder import check
from trtkit.triton.repository import render

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "build_configs" / "smollm2-135m__int8-wo-kv_auto__cpu.yaml"


@pytest.mark.parametrize("cores", [2, 64])
def test_model_repo_is_the_output_for_the_default_contract_on_any_machine(smollm2, cores):
    plan = make_plan(load_contract(CONTRACT).contract, smollm2, Machine(cores=cores, memory_bytes=16 * 10**9))
    assert check(render(plan), ROOT / "model_repo") == [], (
        f"run: trtkit repo {CONTRACT.relative_to(ROOT)} -o model_repo"
    )
