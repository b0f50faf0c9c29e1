import pytest

from trtkit.bench.account import Sample, account, kept, percentile_ms
from trtkit.bench.render import render
from trtkit.bench.schedule import poisson_mix
from trtkit.contract import ServiceClass

SPEC = ServiceClass(priority=1, ttft_ms=100, tpot_ms=20, deadline_ms=1000)


def sample(ttft_s=0.05, last_s=0.15, tokens=11, outcome="ok", name="a"):
    return Sample(name, outcome, ttft_s, last_s, tokens)


def test_tpot_is_the_time_between_first_and_last_over_the_steps_between():
    assert sample(ttft_s=0.1, last_s=0.3, tokens=11).tpot_s == pytest.approx(0.02)
    assert sample(tokens=1).tpot_s is None


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"ttft_s": 0.11, "last_s": 0.2}, False),
        ({"last_s": 0.35}, False),
        ({"ttft_s": 0.09, "last_s": 1.01, "tokens": 100}, False),
        ({"outcome": "RESOURCE_EXHAUSTED", "ttft_s": None, "last_s": None}, False),
        ({"outcome": "INTERNAL"}, False),
    ],
)
def test_a_request_is_good_when_it_keeps_every_promise(change, good):
    assert kept(sample(**change), SPEC) is good


def test_a_class_without_promises_has_no_attainment():
    classes = {"a": SPEC, "b": ServiceClass(priority=2)}
    rows = account([sample(), sample(ttft_s=0.2, last_s=0.3), sample(name="b")], classes, duration_s=2.0)
    assert [(row.attainment, row.goodput_per_s) for row in rows] == [(0.5, 0.5), (None, None)]
    assert "50%" in render(rows)


def test_percentiles_interpolate():
    assert percentile_ms([0.001, 0.002, 0.003], 50) == pytest.approx(2)
    assert percentile_ms([], 99) is None
    assert percentile_ms([0.004], 99) == pytest.approx(4)


def test_a_schedule_is_repeatable_ordered_and_open_loop():
    shots = poisson_mix(["a", "b"], requests=200, rate_per_s=10, seed=7)
    assert shots == poisson_mix(["a", "b"], requests=200, rate_per_s=10, seed=7)
    assert shots == sorted(shots, key=lambda shot: shot.at_s)
    assert shots[-1].at_s == pytest.approx(20, rel=0.25)
    assert {shot.class_name for shot in shots} == {"a", "b"}
