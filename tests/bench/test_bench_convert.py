"""Judges the account of the benchmark, never the speed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.bench.account import CASES, Result, Sample, verdicts

BENCH = Path(__file__).with_name("bench_convert.py")


def start(out, *arguments):
    command = [sys.executable, BENCH, "--gb", "0.02", "--out", out, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(out, *arguments):
    process = start(out, *arguments)
    text, _ = process.communicate(timeout=120)
    return process.returncode, text


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder, exit status and text of one run of one case."""
    out = tmp_path_factory.mktemp("bench")
    return out, *run(out, "--rounds", "1", "--case", "bf16 tp1")


def test_counts_what_a_conversion_reads_writes_and_holds(plain):
    out, _, _ = plain
    (result,) = json.loads((out / "convert.json").read_text())["results"]
    (sample,), (copy,) = result["samples"], result["copies"]
    assert sample["read_bytes"] == pytest.approx(result["source_bytes"], rel=0.05)
    assert sample["written_bytes"] == pytest.approx(result["source_bytes"], rel=0.05)
    assert 0 < sample["rss_bytes"] < result["source_bytes"]
    assert sample["cpu_s"] > 0
    assert copy["cpu_s"] > 0
    assert not sample["torch"]


def test_says_each_figure_next_to_its_goal_and_fails_when_one_is_missed(plain):
    out, status, text = plain
    verdicts = json.loads((out / "convert.json").read_text())["verdicts"]
    assert [verdict["what"] for verdict in verdicts] == ["memory", "read", "torch", "speed"]
    assert status == int(not all(verdict["met"] for verdict in verdicts))
    assert "read 1.0" in " ".join(text.split())
    assert text.count("MISSED") == sum(not verdict["met"] for verdict in verdicts)


def test_draws_a_bar_per_figure(plain):
    out, _, _ = plain
    bars = ET.parse(out / "convert.svg").findall(".//{*}rect")
    assert len(bars) == 5  # cp's speed; speed and memory of the case, each with its goal


def test_leaves_results_only(plain):
    out, _, _ = plain
    assert sorted(path.name for path in out.iterdir()) == ["convert.json", "convert.svg"]


def test_a_case_that_is_not_there_is_named(tmp_path):
    status, text = run(tmp_path, "--case", "bf16 tp3")
    assert status == 2
    assert "bf16 tp3" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_leaves_nothing_when_it_is_stopped(tmp_path, number):
    process = start(tmp_path, "--rounds", "1000")
    while not list(tmp_path.glob(".models*/source/*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=30) != 0
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def result_of(case, source_gb, cpu_s, rss_mb):
    sample = Sample(cpu_s, cpu_s, rss_bytes=round(rss_mb * 1e6), read_bytes=round(source_gb * 1e9))
    return Result(case, round(source_gb * 1e9), 0, (Sample(source_gb / 4, source_gb / 4),), (sample,))


def over_sizes(name, *figures):
    case = next(case for case in CASES if case.name == name)
    found = verdicts([result_of(case, *each) for each in figures])
    return {verdict.what: (verdict.figure, verdict.met) for verdict in found if verdict.subject == name}


def test_quantizing_is_judged_by_what_a_larger_model_takes_more():
    # 1.5 GB more in 1.0 s more; all 2 GB in 1.8 s would be 1.1.
    found = over_sizes("fp8 tp1", (0.5, 0.8, 12), (2.0, 1.8, 112))
    assert found == {"speed from 0.5 GB to 2 GB": ("1.50", True)}
    assert over_sizes("fp8 tp1", (0.5, 0.8, 12), (2.0, 2.5, 112))["speed from 0.5 GB to 2 GB"][1] is False
    assert over_sizes("fp8 tp1", (2.0, 1.8, 112)) == {"speed": ("1.11", True)}


def test_a_copy_takes_no_more_memory_for_a_larger_model():
    # cp takes 0.375 s for 1.5 GB more, the conversion 0.5 s.
    assert over_sizes("bf16 tp1", (0.5, 0.3, 5), (2.0, 0.8, 12)) == {
        "speed from 0.5 GB to 2 GB": ("75%", True),
        "memory over sizes": ("+7.0", True),
    }
    assert over_sizes("bf16 tp1", (0.5, 0.1, 5), (2.0, 0.4, 14))["memory over sizes"][1] is False
