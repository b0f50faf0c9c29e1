import numpy as np
import pytest

from trtkit.bench.arrivals import Arrivals
from trtkit.bench.schedule import Shape
from trtkit.bench.sim.trace import TraceRow
from trtkit.errors import InputError


def times(arrivals, rate=20.0, duration=600.0, seed=1):
    return arrivals.times(np.random.default_rng(seed), rate, duration)


@pytest.mark.parametrize("shape", [Shape.POISSON, Shape.GAMMA, Shape.MMPP])
def test_the_mean_rate_is_kept_in_order_and_within_time(shape):
    # Moods of 20 s and 10 s take many of them to average out.
    found = times(Arrivals(shape, cv=2.0), duration=6000.0)
    assert len(found) == pytest.approx(20 * 6000, rel=0.1)
    assert (np.diff(found) >= 0).all()
    assert 0 <= found[0] <= found[-1] < 6000


def test_mmpp_comes_in_two_moods():
    counts = np.histogram(times(Arrivals(Shape.MMPP), duration=6000.0), bins=1200)[0]
    poisson = np.histogram(times(Arrivals(), duration=6000.0), bins=1200)[0]
    assert counts.var() / counts.mean() > 5 * poisson.var() / poisson.mean()


def test_a_step_is_as_high_and_as_long_as_said_and_its_mean_what_was_asked():
    arrivals = Arrivals(Shape.STEP)
    found = times(arrivals, duration=300.0)
    high = ((found >= 100) & (found < 105)).sum()
    calm = 20 * 300 / (300 + 9 * 5)
    assert high == pytest.approx(calm * 10 * 5, rel=0.15)
    assert len(found) == pytest.approx(20 * 300, rel=0.1)
    assert found[-1] < 300
    assert arrivals.step_end_s(300.0) == 105
    assert Arrivals().step_end_s(300.0) is None


@pytest.mark.parametrize(
    ("shape", "rate", "duration"),
    [(Shape.STEP, 20, 29), (Shape.POISSON, 1e12, 60), (Shape.POISSON, 0.001, 60)],
)
def test_arrivals_that_cannot_be_are_refused(shape, rate, duration):
    with pytest.raises(InputError):
        times(Arrivals(shape), rate, duration)


def test_a_replay_without_a_rate_has_its_own_times():
    trace = [TraceRow(at_s, 10, 5) for at_s in (0.0, 0.5, 8.0)]
    assert times(Arrivals(Shape.REPLAY, trace=trace), None, 5.0).tolist() == [0.0, 0.5]


def test_a_replay_keeps_the_bursts_of_the_trace():
    trace = [TraceRow(at_s, 10, 5) for at_s in (0.0, 0.0, 0.0, 8.0, 9.0, 10.0, 500.0)]
    found = times(Arrivals(Shape.REPLAY, trace=trace), rate=2.0, duration=3.0)
    assert len(found) == 6
    assert (found == 0).sum() == 3
    assert found[-1] == pytest.approx(3.0)


def mooncake(count=2000, step_s=3.0):
    """Stamps as that trace has them: ten requests each, a millisecond too soon or too late."""
    return [TraceRow(n // 10 * step_s + (n // 10 % 3 - 1) / 1000, 10, 5) for n in range(count)]


def test_requests_of_one_coarse_stamp_are_spread_over_it():
    arrivals = Arrivals(Shape.REPLAY, trace=mooncake())
    assert arrivals.stamps_s == 3.0
    found = times(arrivals, None, 600.0)
    assert len(found) == 2000
    assert (np.diff(found) >= 0).all()
    assert 0.8 < np.std(np.diff(found)) / np.mean(np.diff(found)) < 1.1
    stretched = times(arrivals, 100.0, 20.0)
    assert stretched[-1] == pytest.approx(20.0)
    kept = times(Arrivals(Shape.REPLAY, trace=mooncake(), keep_stamps=True), None, 600.0)
    assert len(np.unique(kept)) == 200


@pytest.mark.parametrize(
    "at_s",
    [
        [0.1 * n for n in range(100) for _ in range(3)],
        [float(n) for n in range(100)],
        [float(n * n) for n in range(20) for _ in range(5)],
        [0.0] * 50,
    ],
)
def test_times_that_are_fine_single_or_uneven_stay_as_recorded(at_s):
    assert Arrivals(Shape.REPLAY, trace=[TraceRow(each, 10, 5) for each in at_s]).stamps_s == 0.0
