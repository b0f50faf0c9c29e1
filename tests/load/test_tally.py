import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.bench.measured import Measured, outcome_of, verdict
from trtkit.bench.render import ends
from trtkit.bench.tally import Tallier, count_inversions, jain, recovery_s
from trtkit.contract import ServiceClass
from trtkit.proxy.admission import Outcome
from trtkit.proxy.slo import Verdict

CLASSES = {
    "top": ServiceClass(priority=1, ttft_ms=100.0, tpot_ms=20.0),
    "low": ServiceClass(priority=2, deadline_ms=1000.0, sheddable=True),
    "free": ServiceClass(priority=3),
}


def measured(name="top", at_s=0.0, kind=Outcome.OK, ttft_s=0.05, tokens=11, **rest):
    answered = kind is Outcome.OK
    return Measured(
        name,
        kind.value,
        ttft_s if answered else rest.pop("first_s", None),
        0.15 if answered else None,
        tokens if answered else 0,
        **{"kind": kind, "at_s": at_s, "ended_s": 0.15, "prompt_tokens": 100, "max_tokens": 11, **rest},
    )


def tally(samples, duration_s=2.0, **rest):
    return Tallier(CLASSES, (128,), 0.9).tally(samples, duration_s, **rest)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, Verdict.MET),
        ({"ttft_s": 0.12}, Verdict.MISSED),
        ({"kind": Outcome.REFUSED}, Verdict.MISSED),
        ({"kind": Outcome.TIMED_OUT}, Verdict.MISSED),
        ({"kind": Outcome.FAILED}, Verdict.MISSED),
        ({"kind": Outcome.INVALID}, Verdict.EXCLUDED),
        ({"kind": Outcome.CANCELLED, "ended_s": 0.05}, Verdict.EXCLUDED),
        ({"kind": Outcome.CANCELLED, "ended_s": 0.5}, Verdict.MISSED),
        ({"slow_reader": True}, Verdict.EXCLUDED),
        ({"slow_reader": True, "kind": Outcome.REFUSED}, Verdict.MISSED),
    ],
)
def test_refusals_are_misses_and_only_what_says_nothing_is_left_out(change, found):
    assert verdict(measured(**change), CLASSES["top"]) is found


@pytest.mark.parametrize(
    ("reason", "code", "kind"),
    [
        ("slo_unreachable", "RESOURCE_EXHAUSTED", Outcome.REFUSED),
        ("queue_timeout", "DEADLINE_EXCEEDED", Outcome.TIMED_OUT),
        ("too_long", "INVALID_ARGUMENT", Outcome.INVALID),
        ("something of Triton's", "UNAVAILABLE", Outcome.FAILED),
        ("something of Triton's", "", Outcome.FAILED),
    ],
)
def test_the_proxys_reason_goes_before_the_code(reason, code, kind):
    assert outcome_of(reason, code) is kind


def test_a_run_is_summed_up():
    found = tally(
        [measured(), measured(kind=Outcome.REFUSED, ended_s=0.01), measured("low"), measured("free")]
    )
    assert (found.requests, found.attainment, found.goodput_per_s) == (4, pytest.approx(2 / 3), 1.0)
    assert [row.attainment for row in found.classes] == [0.5, 1.0, None]
    assert found.refusal_p99_ms == pytest.approx(10)
    assert [(row.class_name, row.up_to_tokens, row.attainment) for row in found.buckets] == [
        ("top", 128, 0.5),
        ("low", 128, 1.0),
    ]


def test_only_what_was_worked_on_can_be_wasted():
    refused = measured(kind=Outcome.REFUSED, proxied=True)
    assert tally([measured(), refused]).wasted == 0
    late = measured(ttft_s=0.12)
    assert tally([measured(), late, refused]).wasted == pytest.approx(0.5)
    dispatched = measured(kind=Outcome.TIMED_OUT, proxied=True, queue_s=0.1)
    assert tally([measured(), dispatched]).wasted == pytest.approx(100 / 211)


def test_a_plain_triton_has_no_inversions_to_show():
    assert tally([measured()]).inversions is None


def test_an_inversion_is_a_wait_during_which_a_less_urgent_request_was_sent():
    waits = measured("top", 0.0, queue_s=1.0, proxied=True)
    assert (
        count_inversions([waits, measured("low", 0.0, queue_s=0.5, proxied=True)], {"top": 1, "low": 2}) == 1
    )
    assert (
        count_inversions([waits, measured("low", 0.0, queue_s=1.2, proxied=True)], {"top": 1, "low": 2}) == 0
    )
    # It was sent before the urgent one came.
    assert (
        count_inversions([waits, measured("low", -1.0, queue_s=0.5, proxied=True)], {"top": 1, "low": 2}) == 0
    )


def test_recovery_ends_where_the_objective_is_kept_again():
    times = [0.5 * n for n in range(60)]
    judged = [(measured(at_s=t), Verdict.MISSED if 10 <= t < 17 else Verdict.MET) for t in times]
    assert recovery_s(judged, 12.0, 0.9) == pytest.approx(4.5)  # one miss among ten may be
    assert recovery_s(judged[:36], 12.0, 0.9) is None


def test_a_step_is_recovered_from_not_recovered_from_or_was_none():
    samples = [measured(at_s=float(t), ttft_s=0.05 if t < 10 else 0.5) for t in range(40)]
    assert (tally(samples, 40.0).recovered, tally(samples, 40.0, step_end_s=2.0).recovered) == (None, True)
    found = tally(samples, 40.0, step_end_s=20.0)
    assert (found.recovered, found.recovery_s) == (False, None)


def test_a_refusal_after_its_time_in_the_queue_is_one_too():
    queued = measured(kind=Outcome.TIMED_OUT, proxied=True, ended_s=1.0)
    at_engine = measured(kind=Outcome.TIMED_OUT, proxied=True, queue_s=0.1, ended_s=9.0)
    assert tally([queued, at_engine]).refusal_p99_ms == pytest.approx(1000)


def test_tokens_of_the_first_message_took_no_time_after_it():
    assert measured(ttft_s=0.05, tokens=3, first_tokens=1).tpot_s == pytest.approx(0.05)
    together = measured(ttft_s=0.05, tokens=3, first_tokens=2)
    assert together.tpot_s == pytest.approx(0.1)
    assert verdict(together, ServiceClass(priority=1, tpot_ms=60.0)) is Verdict.MISSED
    assert measured(tokens=3, first_tokens=3).tpot_s is None


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=20))
def test_jain_is_one_for_equals_and_at_least_one_part(shares):
    assert 1 / len(shares) - 1e-9 <= jain(shares) <= 1 + 1e-9
    assert jain([shares[0]] * 3) == pytest.approx(1)
    assert jain(shares[:1]) is None


@given(st.lists(st.tuples(st.sampled_from(list(CLASSES)), st.sampled_from(list(Outcome))), max_size=30))
def test_every_request_is_kept_missed_left_out_or_was_promised_nothing(kinds):
    found = tally([measured(name, kind=kind) for name, kind in kinds])
    promised = sum(row.requests for row in found.classes if row.class_name != "free")
    assert sum(row.kept + row.missed + row.excluded for row in found.classes) == promised
    assert found.wasted is None or 0 <= found.wasted <= 1


def test_what_turned_requests_away_and_which_promises_answers_missed_are_counted():
    found = tally(
        [
            measured(),
            measured(ttft_s=0.12, tokens=2),
            measured(kind=Outcome.REFUSED, constraint="backlog"),
            measured(kind=Outcome.REFUSED, constraint="queue"),
            measured(kind=Outcome.FAILED),
        ]
    )
    row = found.classes[0]
    assert (row.constraints, row.late) == ({"backlog": 1, "queue": 1}, {"ttft": 1, "tpot": 1})
    assert next(ends([row])) == (
        "top: 1 failed, 2 refused; bound by 1 backlog, 1 queue; answered and late: 1 tpot, 1 ttft"
    )
