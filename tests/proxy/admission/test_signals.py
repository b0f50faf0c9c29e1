"""What engines say of themselves corrects the ledger, and only tightens it."""

from __future__ import annotations

import pytest

from tests.proxy.admission.scene import admission, request, sent
from trtkit.proxy.admission import (
    Admission,
    EngineReport,
    Suspicion,
)


def report(used=10, free=90, total=100, per=32, active=None) -> EngineReport:
    return EngineReport(used, free, total, per, active)


def test_requests_of_others_take_slots_slowly_and_never_give_any():
    gate = admission(slots=8)
    for n in range(2):
        gate.offer(request(f"own{n}"), 0)
    gate.observe(0, report(active=6), 0.0)
    ledger = gate.backends[0].ledger
    assert ledger.foreign_slots == 0
    for n in range(1, 40):
        gate.observe(0, report(used=10 + n % 2, free=90 - n % 2, active=6), 0.2 * n)
    assert ledger.foreign_slots == 4
    for n in range(40, 100):
        gate.observe(0, report(used=10 + n % 2, free=90 - n % 2, active=0), 0.2 * n)
    assert ledger.foreign_slots == 0
    assert len(sent([each for n in range(9) for each in gate.offer(request(f"new{n}", at=20), 20)])) == 6


def test_an_engine_that_is_smaller_than_its_contract_is_given_no_more_than_it_has():
    gate = admission(slots=256, kv=122_880)
    gate.observe(0, EngineReport(0, 10, 10, 32, active=0, waiting=0, most_requests=2), 0)
    ledger = gate.backends[0].ledger
    assert (ledger.kv_limit, ledger.slots_limit) == (320, 2)
    offered = [each for n in range(4) for each in gate.offer(request(f"own{n}", prompt=10, output=10), 0)]
    assert sent(offered) == ["own0", "own1"]
    gate.observe(0, EngineReport(0, 9999, 9999, 32, active=0, waiting=0, most_requests=999), 1)
    assert (ledger.kv_limit, ledger.slots_limit) == (122_880, 256)


def test_others_take_at_most_half_of_the_slots():
    gate = admission(slots=8)
    for n in range(99):
        gate.observe(0, report(used=10 + n % 2, free=90 - n % 2, active=500), 0.2 * n)
    assert gate.backends[0].ledger.foreign_slots == 4


def test_more_waiting_than_active_requests_are_absurd():
    assert not EngineReport(1, 9, 10, 32, active=2, waiting=3).plausible


def foreign(gate: Admission) -> int:
    return gate.backends[0].ledger.foreign_kv_tokens


def test_kv_that_others_hold_tightens_the_zone_slowly_and_is_given_back():
    gate = admission(kv=3200)
    gate.observe(0, report(used=50, free=50), 0.0)
    assert foreign(gate) == 160
    for n in range(60):
        gate.observe(0, report(used=50, free=50), 0.2 * n)
    assert foreign(gate) == pytest.approx(1600, rel=0.02)
    gate.offer(request("a"), 20)
    assert gate.offer(request("b", prompt=1450), 20) == []
    for n in range(60):
        gate.observe(0, report(used=4, free=96), 30 + 0.2 * n)
    assert foreign(gate) < 20


@pytest.mark.parametrize(
    ("bad", "suspicion"),
    [
        (None, Suspicion.MISSING),
        (report(used=1, free=1, total=6239), Suspicion.ABSURD),
        (report(used=-5, free=105), Suspicion.ABSURD),
        (report(used=float("nan")), Suspicion.ABSURD),
        (report(total=0, used=0, free=0), Suspicion.ABSURD),
        (report(per=0), Suspicion.ABSURD),
    ],
)
def test_what_cannot_be_believed_gives_no_room_and_shows(bad, suspicion):
    gate = admission(kv=3200)
    for n in range(60):
        gate.observe(0, report(used=50, free=50), 0.2 * n)
    before = foreign(gate)
    for n in range(60):
        gate.observe(0, bad, 20 + 0.2 * n)
    assert (foreign(gate), gate.backends[0].signal.suspicion) == (before, suspicion)


@pytest.mark.parametrize(
    ("same", "suspicion"), [(report(), Suspicion.FROZEN), (report(0, 100), Suspicion.ZERO)]
)
def test_reports_that_stand_still_while_tokens_flow_are_suspect_but_not_while_idle(same, suspicion):
    gate = admission()
    for n in range(30):
        gate.observe(0, same, 0.2 * n)
    assert gate.backends[0].signal.suspicion is Suspicion.NONE
    gate.offer(request("a", at=6), 6)
    gate.first_token("a", 6.1)
    gate.observe(0, same, 6.2)
    assert gate.backends[0].signal.suspicion is suspicion
    gate.observe(0, report(used=11, free=89), 6.4)
    assert gate.backends[0].signal.suspicion is Suspicion.NONE


def test_each_of_several_proxies_hands_out_its_part_and_takes_the_others_for_no_strangers():
    gates = [admission(slots=8, kv=64_000, prefill=1000, proxies=2) for _ in range(2)]
    for gate in gates:
        for n in range(6):
            gate.offer(request(f"own{n}", prompt=100, output=924), 0)
        assert gate.backends[0].ledger.decode_slots == 4
        assert gate.backends[0].ledger.kv_limit == 32_000
    for n in range(60):
        said = EngineReport(256 + n % 2, 1744 - n % 2, 2000, 32, active=8, waiting=0, most_requests=8)
        gates[0].observe(0, said, 0.2 * n)
    ledger = gates[0].backends[0].ledger
    assert (ledger.foreign_kv_tokens, ledger.foreign_slots) == (0, 0)
    assert (ledger.kv_limit, ledger.slots_limit) == (32_000, 4)
    for n in range(60, 120):
        gates[0].observe(0, EngineReport(1500 + n % 2, 500 - n % 2, 2000, 32, active=10), 0.2 * n)
    assert ledger.foreign_slots == 2
    assert ledger.foreign_kv_tokens > 0


def test_blocks_that_stand_still_while_requests_are_told_are_frozen_all_the_same():
    gate = admission(slots=8)
    for n in range(30):
        gate.observe(0, report(active=n % 3), 0.2 * n)
        for decision in gate.offer(request(f"own{n}"), 0.2 * n):
            gate.first_token(decision.id, 0.2 * n)
            gate.finish(decision.id, 0.2 * n)
    assert gate.backends[0].signal.suspicion is Suspicion.FROZEN
