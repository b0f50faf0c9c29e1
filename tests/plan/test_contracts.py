"""The contracts that are shipped, planned: a default that changes silently changes one of these files."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.plan.published import published
from trtkit.catalog.formats import BACKENDS
from trtkit.contract import load_contract
from trtkit.plan import Machine, Plan, make_plan

ROOT = Path(__file__).parents[2]
CONTRACTS = sorted((ROOT / "build_configs").glob("*.yaml"))
GOLDEN = Path(__file__).with_name("golden")
PROMISED = {
    "int8-wo": 0.006,
    "int8-sq": 0.015,
    "int8-sq qdq": 0.035,
    "fp8": 0.04,
    "fp8-rowwise": 0.04,
    "fp8 with an fp8 cache": 0.05,
    "fp8-rowwise with an fp8 cache": 0.05,
    "int4-awq": 0.23,
}
"""KL divergence of SmolLM2-135M-Instruct, nats per token."""
MACHINE = Machine(cores=2, memory_bytes=16 * 10**9)


def essence(plan: Plan) -> dict[str, Any]:
    """Return what later stages and the proxy go by; times to three digits."""
    document = {
        "limits": asdict(plan.limits),
        "memory": asdict(plan.memory),
        "zones": asdict(plan.zones),
        "enable_block_reuse": plan.enable_block_reuse,
        "warnings": [f"{each.key}: {each.message}" for each in plan.warnings],
    }
    if plan.target and plan.pace:
        document["settings"] = {each.name: each.effective for each in plan.target.settings}
        document["chunked_context"] = plan.target.chunked_context
        document["max_attention_window"] = plan.target.max_attention_window
        document["image"] = plan.target.image
        document["pace"] = {
            "source": plan.pace.source,
            "step_ms": f"{plan.pace.step_ms:.3g}",
            "requests_per_s": f"{plan.pace.requests_per_s:.3g}",
            "kept_requests_per_s": f"{plan.pace.kept_requests_per_s:.3g}",
            "kept": all(each.kept for each in plan.pace.classes),
        }
    return json.loads(json.dumps(document))


def plan_of(path: Path) -> Plan:
    return make_plan(load_contract(path).contract, published(path.stem.partition("__")[0]), MACHINE)


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_a_shipped_contract_gives_the_plan_that_is_kept_for_it(path):
    found, kept = essence(plan_of(path)), GOLDEN / f"{path.stem}.json"
    if "TRTKIT_WRITE_GOLDEN" in os.environ:
        kept.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(kept.read_text()), "if this is meant: TRTKIT_WRITE_GOLDEN=1 pytest tests/plan"


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_a_name_says_what_is_in_the_contract(path):
    contract = load_contract(path).contract
    formats, engine = contract.quantization, contract.engine
    name = f"{formats.weights.value}-kv_{formats.kv_cache.value}"
    target = engine.backend.value if engine.gpu is None else f"{engine.gpu}-tp{engine.tensor_parallel}"
    assert path.stem.partition("__")[2] == f"{name}__{target}"


@pytest.mark.parametrize(
    "path", [path for path in CONTRACTS if path.stem.startswith("smollm2")], ids=lambda path: path.stem
)
def test_a_gate_lets_nothing_worse_than_promised_through(path):
    asked = load_contract(path).contract.quantization
    form = f" {asked.smoothquant}" if asked.smoothquant else ""
    cache = "" if asked.kv_cache.value == "auto" else f" with an {asked.kv_cache.value} cache"
    if asked.gate is None:
        # What needs no calibration needs no torch to be built.
        assert not asked.takes_ranges
    else:
        assert asked.gate.max_kl <= PROMISED[f"{asked.weights.value}{form}{cache}"]


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_a_shipped_contract_can_keep_its_promises(path):
    plan = plan_of(path)
    assert plan.pace is None or all(each.kept for each in plan.pace.classes)


def test_there_is_one_for_the_cpu_in_every_format_it_runs():
    formats = {
        load_contract(path).contract.quantization.weights.value for path in CONTRACTS if "__cpu" in path.name
    }
    # GPTQ comes from sources that have it, and 576 channels are no multiple of the groups of 128 that W4A8 has.
    assert formats == set(BACKENDS["cpu"].weights) - {"int4-gptq", "w4a8-awq"}


def test_no_golden_plan_is_left_behind():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {path.stem for path in CONTRACTS}
