"""Admission: who goes to the engine next, who waits, who is told no.

Pure: time is an argument (``now_s``, any monotonic clock), ids come from the caller, answers are lists of decisions.
The proxy and the simulator drive this very code.
"""

from trtkit.proxy.admission.decision import Abort, Decision, Dispatch, Refuse
from trtkit.proxy.admission.ledger import Ledger
from trtkit.proxy.admission.outcome import FIXED_PUSHBACK_MS, Outcome, Reason, Retry
from trtkit.proxy.admission.policy import Admission
from trtkit.proxy.admission.pool import PoolSpec
from trtkit.proxy.admission.queue import BandQueue
from trtkit.proxy.admission.record import SENTENCES, UNSIZED, Bound, Constraint, Record
from trtkit.proxy.admission.request import NO_TERMS, Request, State, Terms, Ticket, TimeLimits, terms_of
from trtkit.proxy.admission.signal import EngineReport, Suspicion

__all__ = [
    "FIXED_PUSHBACK_MS",
    "NO_TERMS",
    "SENTENCES",
    "UNSIZED",
    "Abort",
    "Admission",
    "BandQueue",
    "Bound",
    "Constraint",
    "Decision",
    "Dispatch",
    "EngineReport",
    "Ledger",
    "Outcome",
    "PoolSpec",
    "Reason",
    "Record",
    "Refuse",
    "Request",
    "Retry",
    "State",
    "Suspicion",
    "Terms",
    "Ticket",
    "TimeLimits",
    "terms_of",
]
