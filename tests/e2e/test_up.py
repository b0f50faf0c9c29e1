"""The main job as a user runs it: one command, the real model, a real Triton, and nothing left behind."""

import json
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.conftest import CONTRACT


def commands():
    return [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]


def orphans():
    """Return the shared memory regions of servers of which no process is left."""
    prefix = len("trtkit-0123456789ab")
    regions = [path.name for path in Path("/dev/shm").glob("trtkit-*")]
    return [name for name in regions if not any(name[:prefix].encode() in command for command in commands())]


@pytest.fixture(autouse=True)
def nothing_is_left(machine):
    yield
    deadline = time.monotonic() + 20
    while (
        any(str(machine.home).encode() in command for command in commands()) and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    assert [command for command in commands() if str(machine.home).encode() in command] == []
    assert orphans() == []


def test_one_command_goes_the_whole_road(machine):
    run = machine.run("up", CONTRACT, "--requests", 9, "--rate", 4, "--output", "json")
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert "Paris" in result["answer"]
    assert {row["class_name"] for row in result["classes"]} == {"interactive", "standard", "batch"}
    assert (
        sum(row["ok"] for row in result["classes"]) == sum(row["requests"] for row in result["classes"]) == 9
    )


def test_the_second_build_is_a_hit(machine):
    run = machine.run("build", CONTRACT, "--dry-run", "--output", "json")
    assert [stage["state"] for stage in json.loads(run.stdout)["stages"]] == ["hit", "hit", "hit"]


def test_the_engine_is_as_large_as_planned(machine):
    plan = json.loads(machine.run("plan", CONTRACT, "--output", "json").stdout)["plan"]
    (manifest,) = machine.home.glob("compile/*/trtkit-manifest.json")
    built = json.loads(manifest.read_text())["facts"]["weights_bytes"]
    assert plan["memory"]["weights_bytes"] == pytest.approx(built, rel=0.01)


def test_another_limit_compiles_again_but_does_not_convert(machine):
    run = machine.run(
        "build", CONTRACT, "--dry-run", "--output", "json", "--set", "engine.limits.max_batch_size=8"
    )
    assert [stage["state"] for stage in json.loads(run.stdout)["stages"]] == ["hit", "build", "build"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_kept_up_it_ends_cleanly_on_a_signal(machine, number):
    process, _, metrics = machine.keep_up()
    with urllib.request.urlopen(metrics) as scrape:
        assert b"trtkit_proxy_requests_total" in scrape.read()
    process.send_signal(number)
    assert process.wait(30) == 0
    process.stderr.close()


def test_a_killed_parent_takes_its_server_along(machine):
    process, _, _ = machine.keep_up()
    process.kill()
    process.wait()
    process.stderr.close()
