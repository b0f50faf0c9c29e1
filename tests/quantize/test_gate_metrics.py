import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trtkit.quantize.gate.metrics import Interval, compare, mean, perplexity_ratio, share
from trtkit.quantize.gate.report import Measure

LOGITS = arrays(np.float32, (40, 7), elements=st.floats(-30, 30, width=32))
TOKENS = np.arange(40, dtype=np.int64) % 7


@given(LOGITS)
def test_a_model_agrees_with_itself_whatever_is_added_to_its_logits(logits):
    found = compare(TOKENS, logits, logits + np.float32(3))
    assert np.abs(found.kl).max() < 1e-4
    assert np.allclose(found.baseline_nll, found.candidate_nll, atol=1e-4)
    assert len(found.kl) == 40
    assert len(found.baseline_nll) == 39


@given(LOGITS, LOGITS)
def test_figures_are_those_of_torch(one, other):
    torch = pytest.importorskip("torch")
    found = compare(TOKENS, one, other)
    logs = [torch.from_numpy(each).double().log_softmax(-1) for each in (one, other)]
    kl = torch.nn.functional.kl_div(logs[1], logs[0], reduction="none", log_target=True).sum(-1)
    assert np.allclose(found.kl, kl.numpy(), atol=1e-4)
    nll = torch.nn.functional.nll_loss(logs[1][:-1], torch.from_numpy(TOKENS[1:]), reduction="none")
    assert np.allclose(found.candidate_nll, nll.numpy(), atol=1e-4)
    centred = [torch.from_numpy(each - each.mean(-1, keepdims=True)) for each in (one, other)]
    cosine = torch.nn.functional.cosine_similarity(*centred).numpy()
    # A constant row has no direction.
    has_direction = np.minimum(one.std(-1), other.std(-1)) > 1e-2
    assert np.allclose(found.cosine[has_direction], cosine[has_direction], atol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_value_that_is_no_number_is_found(bad):
    logits = np.random.default_rng(0).standard_normal((40, 7)).astype(np.float32)
    broken = logits.copy()
    broken[17, 3] = bad
    with np.errstate(invalid="ignore"):
        assert not compare(TOKENS, logits, broken).is_finite
    assert compare(TOKENS, logits, logits).is_finite


def test_samples_are_weighed_by_their_tokens_and_the_interval_is_the_same_every_time():
    samples = [np.full(10, 1.0), np.full(30, 2.0), np.full(20, 1.5)]
    found = mean(samples)
    assert found.value == pytest.approx((10 + 60 + 30) / 60)
    assert 1 <= found.low < found.value < found.high <= 2
    assert mean(samples) == found


def test_twice_the_odds_against_every_token_is_twice_the_perplexity():
    even = np.zeros((40, 2), np.float32)
    tokens = np.zeros(40, np.int64)
    worse = even + np.array([0, np.log(3)], np.float32)  # 1/4 instead of 1/2
    assert perplexity_ratio([compare(tokens, even, worse)] * 2).value == pytest.approx(2)


@pytest.mark.parametrize(
    ("interval", "limit", "upper", "passes"),
    [
        (Interval(0.04, 0.03, 0.049), 0.05, True, True),
        (Interval(0.04, 0.03, 0.051), 0.05, True, False),
        (Interval(0.95, 0.91, 0.99), 0.9, False, True),
        (Interval(0.95, 0.89, 0.99), 0.9, False, False),
        (Interval(0.04, 0.03, 9.0), None, True, True),
        (Interval(float("nan"), 0.0, 0.0), None, True, False),
        (Interval(0.0, 0.0, float("nan")), 0.05, True, False),
    ],
)
def test_the_worse_end_of_the_interval_decides(interval, limit, upper, passes):
    assert Measure("x", interval, limit, upper).passes is passes


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_a_share_is_never_surer_than_its_number_of_questions_allows(right):
    found = share(right)
    assert 0 <= found.low <= found.value <= found.high <= 1
    # Even of all right, 1.96**2 / (n + 1.96**2) may be wrong.
    assert found.high - found.low >= 1.96**2 / (len(right) + 1.96**2) - 1e-9


def test_one_right_answer_of_one_proves_little():
    assert share([True]) == Interval(1.0, pytest.approx(0.2065, abs=1e-4), 1.0)
