"""Every field of a plan says for which stages it is a part of the key, and is what it says."""

import types
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

import pytest

from trtkit.catalog.model import ModelConfig
from trtkit.contract import load_contract
from trtkit.engine.keys import REPO, ROWS, STAGES, contract_word, leaves, plan_inputs, row_of
from trtkit.plan import Machine, Plan, make_plan
from trtkit.triton.repository import render

OPAQUE = {"model", "pace", "target.gpu"}
"""Taken as a whole: what is in them comes from the source, from a formula, from the catalog."""


def declared_paths(kind, path=""):
    """Yield the dotted path of every field that a plan can have, whether or not one has it."""
    for name, hint in get_type_hints(kind).items():
        if name not in {each.name for each in fields(kind)}:
            continue
        below = f"{path}.{name}" if path else name
        kinds = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
        nested = [each for each in kinds if is_dataclass(each)]
        if nested and below not in OPAQUE:
            yield from declared_paths(nested[0], below)
        else:
            yield below


def test_every_field_is_declared_by_a_row_of_its_own():
    paths = set(declared_paths(Plan))
    rows = {row.path for row in ROWS}
    assert paths - rows == set(), "say in trtkit/engine/keys.py which stages these change"
    below_opaque = {path for path in rows if any(path.startswith(f"{name}.") for name in OPAQUE)}
    assert rows - paths == below_opaque


def test_a_row_names_stages_or_says_why_it_has_none():
    for row in ROWS:
        assert bool(row.stages) != bool(row.why_not), row.path
        assert set(row.stages) <= set(STAGES)


GPU = ["engine.backend=tensorrt", "engine.gpu=l40s", "engine.build_flags={strip_plan: true}"]


@pytest.fixture(scope="module", params=[(), GPU], ids=["cpu", "gpu"])
def plan(request):
    model = ModelConfig(
        architecture="LlamaForCausalLM", hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, head_size=16,
        intermediate_size=128, vocab_size=260, hidden_act="silu", norm_epsilon=1e-5, max_position_embeddings=4096,
        rotary_base=1e4, rotary_scaling=None, attn_bias=False, mlp_bias=False, tie_word_embeddings=False,
        dtype="bfloat16", bos_token_id=1, eos_token_ids=(2,), pad_token_id=3,
    )  # fmt: skip
    path = Path(__file__).parents[2] / "build_configs" / "smollm2-135m__int8-wo-kv_auto__cpu.yaml"
    contract = load_contract(path, request.param).contract
    return make_plan(contract, model, Machine(cores=2, memory_bytes=8 * 10**9))


def changed(value, path):
    """Return a dataclass with another value at a dotted path."""
    name, _, rest = path.partition(".")
    old = getattr(value, name)
    if rest:
        return replace(value, **{name: changed(old, rest)})
    if name == "trtllm":  # another line that there is
        return replace(value, trtllm="0.17")
    other = {bool: lambda: not old, int: lambda: old + 1, float: lambda: old * 2, str: lambda: old + "x"}
    return replace(value, **{name: other.get(type(old), lambda: (7,))()})


def test_a_change_reaches_the_keys_of_the_stages_that_the_row_names_and_no_other(plan):
    for path, value in leaves(plan):
        if path == "warnings" or value is None or isinstance(value, dict):
            continue
        after = changed(plan, path)
        reached = {stage for stage in STAGES if plan_inputs(after, stage) != plan_inputs(plan, stage)}
        assert reached == set(row_of(path).stages), path


def test_a_repository_depends_on_nothing_but_what_is_declared(plan):
    before = render(plan)
    for path, value in leaves(plan):
        if path in {"backend", "warnings"} or value is None or isinstance(value, dict):
            continue
        assert (render(changed(plan, path)) != before) == (REPO in row_of(path).stages), path


def test_a_field_that_no_row_names_is_taken_for_a_key(plan, monkeypatch):
    monkeypatch.setattr("trtkit.engine.keys.ROWS", [row for row in ROWS if row.path != "zones.kv_tokens"])
    assert all("zones.kv_tokens" in plan_inputs(plan, stage) for stage in STAGES)


def test_fields_have_the_contract_s_names():
    assert contract_word("limits.max_seq_len") == "engine.limits.max_seq_len"
    assert contract_word("model.vocab_size") == "model.source (vocab_size)"
    assert contract_word("no.such.field") == "no.such.field"
