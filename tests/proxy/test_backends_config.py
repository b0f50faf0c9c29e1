"""Pools in the contract, and the servers that the proxy takes from it or from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import trtkit  # noqa: F401 - a fixture
from tests.proxy.conftest import CLASSES
from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.load import parse_contract
from trtkit.errors import ContractError, InputError
from trtkit.plan.types import EngineLimits, Zones
from trtkit.proxy.config import Endpoint, PoolConfig, ProxyConfig, endpoints_of

BASE = "{apiVersion: trtkit/v1, kind: Contract, name: x, model: {source: x}, classes: {a: {priority: 1}}"


def contract(pools=""):
    return parse_contract(f"{BASE}{', pools: ' if pools else ''}{pools}}}", Path("c.yaml")).contract


SPLIT = "{long: {min_prompt_tokens: 900, limits: {max_input_len: 4000}}, short: {}}"


def test_pools_come_by_length_and_each_has_a_contract_of_its_own():
    split = contract(SPLIT)
    assert list(split.pools_by_length) == ["short", "long"]
    assert list(contract().pools_by_length) == ["standard"]
    assert split.for_pool("long").engine.limits.max_input_len == 4000
    assert split.for_pool("short").engine == split.engine
    assert split.for_pool("long").pools == {}


@pytest.mark.parametrize(
    ("pools", "problem"),
    [
        ("{long: {min_prompt_tokens: 9}}", "no pool takes prompts below 9 tokens"),
        ("{a: {}, b: {}}", "two pools begin at the same"),
        ("{a: {upstreams: [{grpc: 'h:0'}]}}", "'h:0' is no address"),
        ("{a: {upstreams: [{grpc: 'h:1', metrics: 'unix:/s:1'}]}}", "write HOST:PORT of Triton's metrics"),
        ("{a: {upstreams: [{grpc: 'h:1'}, {grpc: 'h:1'}]}}", "name the upstream h:1 twice"),
        ("{a: {upstreams: [{grpc: 'LocalHost:1'}, {grpc: '127.0.0.1:01'}]}}", "upstream 127.0.0.1:01 twice"),
        (
            "{a: {upstreams: [{grpc: 'h:1', metrics: 'h:3'}, {grpc: 'h:2', metrics: 'H:3'}]}}",
            "metrics H:3 twice",
        ),
        ("{a: {upstreams: [{}]}}", "the key is required"),
        ("{a: {limits: {max_beam_width: 2}}}", "unknown key"),
    ],
)
def test_pools_that_cannot_be_are_refused_by_name(pools, problem):
    with pytest.raises(ContractError, match=problem):
        contract(pools)


def test_the_old_key_for_long_prompts_says_where_it_went():
    with pytest.raises(ContractError, match=r"pools\.NAME\.min_prompt_tokens"):
        parse_contract(f"{BASE}, admission: {{long_prompt_tokens: 9}}}}", Path("c.yaml"))


def test_servers_are_those_of_the_command_line_else_the_contracts():
    named = contract("{standard: {upstreams: [{grpc: 'h:1', metrics: 'h:2'}]}}")
    assert endpoints_of(named, []) == {"standard": (Endpoint("h:1", "h:2"),)}
    assert endpoints_of(named, ["g:1", "unix:/a=b:1"], ["g:2", "g:3"]) == {
        "standard": (Endpoint("g:1", "g:2"), Endpoint("unix:/a=b:1", "g:3"))
    }
    assert endpoints_of(contract(SPLIT), ["g:1", "long=g:2"]) == {
        "short": (Endpoint("g:1"),),
        "long": (Endpoint("g:2"),),
    }


@pytest.mark.parametrize(
    ("pools", "upstreams", "metrics", "problem"),
    [
        ("", [], [], "pool standard has no server"),
        (SPLIT, ["h:1"], [], "pool long has no server"),
        (SPLIT, ["h:1", "huge=h:2"], [], "no pool 'huge'"),
        ("", ["h:1", "h:2"], ["h:3"], "1 metrics addresses for 2 upstreams"),
        ("{standard: {upstreams: [{grpc: 'h:1'}]}}", [], ["h:3"], "1 metrics addresses for 0 upstreams"),
        ("", ["http://h:1"], [], "is no address"),
    ],
)
def test_servers_that_cannot_be_are_refused_by_name(pools, upstreams, metrics, problem):
    with pytest.raises(InputError, match=problem):
        endpoints_of(contract(pools), upstreams, metrics)


def pool(longest, start=0, place="h:1", name="standard", metrics=None):
    limits = EngineLimits(
        max_batch_size=1,
        max_input_len=longest,
        max_seq_len=longest + 9,
        max_num_tokens=64,
        tokens_per_block=32,
    )
    return PoolConfig(limits, Zones(9, 9, 1), (Endpoint(place, metrics),), name, start)


@pytest.mark.parametrize(
    ("long", "problem"),
    [
        (pool(500, 102, "h:2", "long"), "no pool takes prompts of 101 to 101 tokens: standard ends at 100"),
        (pool(99, 50, "h:2", "long"), "max_input_len is 99 in pool long and 100 in standard"),
        (pool(500, 101, "h:1", "long"), "the upstream h:1 is named twice"),
        (pool(500, 101, "h:2", "long", "H:3"), "the metrics H:3 are named twice"),
    ],
)
def test_pools_that_do_not_fit_together_are_refused_by_name(long, problem):
    with pytest.raises(InputError, match=problem):
        ProxyConfig(CLASSES, "standard", AdmissionRules(), (pool(100, metrics="h:3"), long))


def test_the_limits_of_a_prompt_are_those_of_its_pool():
    config = ProxyConfig(CLASSES, "standard", AdmissionRules(), (pool(100), pool(500, 101, "h:2", "long")))
    assert [config.limits_of(n).max_input_len for n in (1, 100, 101, 10**9)] == [100, 100, 500, 500]


def test_a_proxy_without_a_server_says_how_to_name_one(trtkit, tmp_path):  # noqa: F811
    (tmp_path / "c.yaml").write_text(f"{BASE}}}")
    code, _, error = trtkit("proxy", tmp_path / "c.yaml", "--grpc-port", 0, "--metrics-port", 0)
    assert code == 2
    assert "give --upstream HOST:PORT, or name it in pools.standard.upstreams" in error
