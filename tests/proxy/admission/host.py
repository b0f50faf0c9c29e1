"""A host of an admission for schedules that hypothesis makes up."""

from __future__ import annotations

from collections import Counter

from trtkit.proxy.admission import Abort, Admission, Decision, Dispatch, Refuse, Request


class Host:
    """Drives an admission as the proxy does; what is to hold is checked at every step."""

    def __init__(self, gate: Admission) -> None:
        self.gate = gate
        self.now_s = 0.0
        self.arrived: dict[str, Request] = {}
        self.waiting: set[str] = set()
        self.running: set[str] = set()
        self.aborted: set[str] = set()
        self.ends: Counter[str] = Counter()

    def check_order(self, decision: Dispatch) -> None:
        """Check that it is its turn."""
        raise NotImplementedError

    def check_state(self) -> None:
        """Check what holds at any time."""
        raise NotImplementedError

    def arrive(self, request: Request) -> list[Decision]:
        self.arrived[request.id] = request
        self.waiting.add(request.id)
        return self.gate.offer(request, self.now_s)

    def apply(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self.check_order(decision)
                self.waiting.remove(decision.id)
                self.running.add(decision.id)
                continue
            self.ends[decision.id] += 1
            if isinstance(decision, Refuse):
                self.waiting.remove(decision.id)
                assert decision.record.reason is decision.reason
            else:
                assert isinstance(decision, Abort)
                assert decision.id in self.running
                self.aborted.add(decision.id)
        self.check_state()

    def act(self, what: str, which: int) -> None:
        alive = sorted(self.running | (self.waiting if what == "cancel" else set()))
        if not alive:
            return
        key = alive[which % len(alive)]
        if what == "first":
            self.apply(self.gate.first_token(key, self.now_s))
        elif what == "token":
            self.gate.token(key, self.now_s)
        elif what == "cancel":
            self.apply(self.gate.cancel(key, self.now_s))
        else:
            self.finish(key)

    def finish(self, key: str) -> None:
        if key not in self.aborted:
            self.ends[key] += 1
        self.running.remove(key)
        self.apply(self.gate.finish(key, self.now_s))
