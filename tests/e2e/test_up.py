"""The main job as a user runs it: one command, the real model, a real Triton, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[2] / "build_configs" / "smollm2-135m__int8-wo__cpu.yaml"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


def command(*arguments):
    return [sys.executable, "-m", "trtkit", *map(str, arguments)]


def environment(home):
    return {**os.environ, "TRTKIT_HOME": str(home)}


def commands():
    return [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]


def orphans():
    """Return the shared memory regions of servers of which no process is left."""
    prefix = len("trtkit-0123456789ab")
    regions = [path.name for path in Path("/dev/shm").glob("trtkit-*")]
    return [name for name in regions if not any(name[:prefix].encode() in command for command in commands())]


@pytest.fixture(autouse=True)
def nothing_is_left(home):
    yield
    deadline = time.monotonic() + 20
    while any(str(home).encode() in command for command in commands()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [command for command in commands() if str(home).encode() in command] == []
    assert orphans() == []


def test_one_command_goes_the_whole_road_and_leaves_nothing(home):
    run = subprocess.run(
        command("up", CONTRACT, "--requests", 9, "--rate", 4, "--output", "json"),
        env=environment(home), capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert "Paris" in result["answer"]
    assert {row["class_name"] for row in result["classes"]} == {"interactive", "standard", "batch"}
    assert (
        sum(row["ok"] for row in result["classes"]) == sum(row["requests"] for row in result["classes"]) == 9
    )


def test_the_second_build_is_a_hit(home):
    run = subprocess.run(
        command("build", CONTRACT, "--dry-run", "--output", "json"),
        env=environment(home), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [stage["state"] for stage in json.loads(run.stdout)["stages"]] == ["hit", "hit", "hit"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_kept_up_it_ends_cleanly_on_a_signal(home, number):
    process = subprocess.Popen(
        command("up", CONTRACT, "--keep", "--requests", 1),
        env=environment(home),
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = iter(process.stderr.readline, "")
    where = next(line for line in lines if line.startswith("proxy: "))
    next(line for line in lines if line.startswith("up until Ctrl-C"))
    with urllib.request.urlopen(where.split()[-1]) as scrape:
        assert b"trtkit_proxy_requests_total" in scrape.read()
    process.send_signal(number)
    assert process.wait(30) == 0
    process.stderr.close()


def test_a_killed_parent_takes_its_server_along(home):
    process = subprocess.Popen(
        command("up", CONTRACT, "--keep", "--requests", 1),
        env=environment(home),
        stderr=subprocess.PIPE,
        text=True,
    )
    next(line for line in iter(process.stderr.readline, "") if line.startswith("up until Ctrl-C"))
    process.kill()
    process.wait()
    process.stderr.close()
