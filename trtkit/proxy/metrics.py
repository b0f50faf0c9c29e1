"""The proxy's metrics: seconds, fixed label sets, every series at 0 before the first request.

No label ever holds what a client sent: classes come from the contract, models are the three of the repository and
one for all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trtkit.contract.service import ServiceClass
from trtkit.conventions import ENGINE_MODEL, METRIC_PREFIX, TEXT_MODELS
from trtkit.proxy.admission import (
    UNSIZED,
    Admission,
    Constraint,
    Ledger,
    Outcome,
    Reason,
    Record,
    State,
    Suspicion,
)
from trtkit.proxy.admission.backend import Backend
from trtkit.proxy.health import Health
from trtkit.proxy.slo import Timeline, Verdict, judge, kept_all

MODELS = (ENGINE_MODEL, *TEXT_MODELS)
"""Models of the repositories that trtkit makes."""
OTHER = "other"
"""Label of all other models: their names come from clients."""
NO_CLASS = "unknown"
"""Class label of a request whose class could not be told."""

# The lists of vLLM, of which OpenTelemetry's GenAI lists are prefixes: dashboards for either work.
_TTFT_EDGES_S = "0.001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
_TPOT_EDGES_S = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
_TOTAL_EDGES_S = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
_QUEUE_EDGES_S = f".0001 .001 .005 .01 .025 .05 .1 {_TOTAL_EDGES_S}"


_ZONES = {"prefill_tokens": "prefill_limit", "kv_tokens": "kv_limit", "decode_slots": "slots_limit"}
"""What a ledger counts, and the bound of it."""


def _edges(listed_s: str, promised_ms: list[float | None]) -> list[float]:
    """Return bucket edges that include the promises, so that attainment can be read off exactly."""
    return sorted({*map(float, listed_s.split()), *(each / 1000 for each in promised_ms if each is not None)})


def _suspects(backend: Backend, suspicion: Suspicion) -> float:
    return float(backend.signal.suspicion is suspicion)


def _value(of: Backend | Ledger, name: str) -> float:
    return float(getattr(of, name))


class Metrics:
    """Counts every request once, when it is answered."""

    def __init__(self, classes: Mapping[str, ServiceClass], registry: CollectorRegistry) -> None:
        self._classes = classes
        self._registry = registry
        promises = list(classes.values())
        self._requests = self._counter(
            "requests", "Requests by how they ended.", "model", "class", "outcome", "reason"
        )
        self._tokens = self._counter("output_tokens", "Tokens sent to clients.", "model", "class")
        self._ttft = self._histogram(
            "time_to_first_token",
            "From arrival to first token.",
            _TTFT_EDGES_S,
            [p.ttft_ms for p in promises],
        )
        self._tpot = self._histogram(
            "time_per_output_token",
            "(last - first token) / (tokens - 1).",
            _TPOT_EDGES_S,
            [p.tpot_ms for p in promises],
        )
        self._total = self._histogram(
            "request_duration", "From arrival to end.", _TOTAL_EDGES_S, [p.deadline_ms for p in promises]
        )
        self._queue = self._histogram(
            "queue_duration",
            "From arrival to dispatch.",
            _QUEUE_EDGES_S,
            [p.queue_limit_ms for p in promises],
        )
        self._eligible = self._counter(
            "slo_eligible", "Requests that a promise applies to.", "class", "dimension"
        )
        self._met = self._counter("slo_met", "Requests that a promise was kept to.", "class", "dimension")
        self._excluded = self._counter("slo_excluded", "Requests left out of attainment.", "class", "outcome")
        self._goodput = self._counter(
            "goodput_requests", "Requests that kept every promise of their class.", "class"
        )
        self._decisions = self._counter(
            "decisions",
            "Requests that were sent or refused, by what bound them and by prompt length.",
            "class",
            "constraint",
            "bucket",
        )
        self._redirected = self._counter(
            "redirected_requests",
            "Requests that went on to another engine, since this one could not be reached.",
            "backend",
        )
        self._ejections = self._counter(
            "backend_ejections", "Times that an engine's server went down.", "backend", "health"
        )
        self._create_series()

    def observe(self, model: str, class_name: str, reason: Reason, timeline: Timeline) -> None:
        """Count a request that was just answered."""
        model = model if model in MODELS else OTHER
        self._requests.labels(model, class_name, reason.outcome.value, reason.value).inc()
        promise = self._classes.get(class_name)
        if promise is None:
            return
        self._observe_times(model, class_name, timeline)
        verdicts = judge(promise, reason.outcome, timeline)
        if not verdicts:
            return
        for dimension, verdict in {**verdicts, "all": kept_all(verdicts)}.items():
            self._eligible.labels(class_name, dimension).inc(verdict is not Verdict.EXCLUDED)
            self._met.labels(class_name, dimension).inc(verdict is Verdict.MET)
        self._goodput.labels(class_name).inc(kept_all(verdicts) is Verdict.MET)
        if kept_all(verdicts) is Verdict.EXCLUDED:
            self._excluded.labels(class_name, reason.outcome.value).inc()

    def decided(self, record: Record) -> None:
        """Count a decision."""
        self._decisions.labels(record.class_name, record.constraint.value, record.bucket).inc()

    def redirected(self, backend: int) -> None:
        """Count a request that was to go to an engine that could not be reached."""
        self._redirected.labels(str(backend)).inc()

    def turned(self, backend: int, health: Health) -> None:
        """Count that an engine's server went down, and why."""
        if not health.up:
            self._ejections.labels(str(backend), health.value).inc()

    def watch(self, admission: Admission, places: Sequence[tuple[str, str]] = ()) -> None:
        """Publish admission's live numbers; they are read when they are scraped.

        ``places`` are pool and address of each engine's server.
        """
        self._watch_backends(admission, places or [("", "")] * len(admission.backends))
        depth = self._gauge("queue_depth", "Requests that wait.", "class")
        running = self._gauge("inflight_requests", "Requests at the engine.", "class")
        cancelling = self._gauge(
            "cancelling_requests", "Answered, but not yet let go by the engine.", "class"
        )
        at_engine = (State.PREFILLING, State.DECODING, State.CANCELLING)
        for name in self._classes:
            depth.labels(name).set_function(partial(admission.count, name, State.QUEUED))
            running.labels(name).set_function(partial(admission.count, name, *at_engine))
            cancelling.labels(name).set_function(partial(admission.count, name, State.CANCELLING))
        for name in (*self._classes, NO_CLASS):
            for constraint in Constraint:
                for bucket in (UNSIZED,) if name == NO_CLASS else (*admission.buckets, UNSIZED):
                    self._decisions.labels(name, constraint.value, bucket)
        rate = self._gauge(
            "prefill_rate_tokens_per_second",
            "Measured prompt tokens per second of all engines; 0 until known.",
        )
        rate.set_function(lambda: admission.known_rate)

    def _watch_backends(self, admission: Admission, places: Sequence[tuple[str, str]]) -> None:
        up = self._gauge(
            "backend_up", "1 while requests may be sent to the engine.", "backend", "pool", "upstream"
        )
        suspect = self._gauge(
            "engine_report_suspect",
            "1 while what the engine says of its KV pool is not believed.",
            *("backend", "suspicion"),
        )
        used = self._gauge(
            "zone_used", "What is in flight: tokens, or requests in zone decode_slots.", "backend", "zone"
        )
        limit = self._gauge(
            "zone_limit",
            "What may be in flight: tokens, or requests in zone decode_slots.",
            "backend",
            "zone",
        )
        for backend, place in zip(admission.backends, places, strict=True):
            name, ledger = str(backend.index), backend.ledger
            up.labels(name, *place).set_function(partial(_value, backend, "up"))
            self._redirected.labels(name)
            for health in Health:
                if not health.up:
                    self._ejections.labels(name, health.value)
            for suspicion in Suspicion:
                if suspicion is not Suspicion.NONE:
                    suspect.labels(name, suspicion.value).set_function(partial(_suspects, backend, suspicion))
            for zone, bound in _ZONES.items():
                used.labels(name, zone).set_function(partial(_value, ledger, zone))
                limit.labels(name, zone).set_function(partial(_value, ledger, bound))

    def _observe_times(self, model: str, class_name: str, timeline: Timeline) -> None:
        self._tokens.labels(model, class_name).inc(timeline.tokens)
        queue_s = None if timeline.dispatched_s is None else timeline.dispatched_s - timeline.arrival_s
        for histogram, value_s in (
            (self._ttft, timeline.ttft_s),
            (self._tpot, timeline.tpot_s),
            (self._total, timeline.total_s),
            (self._queue, queue_s),
        ):
            if value_s is not None:
                histogram.labels(model, class_name).observe(value_s)

    def _create_series(self) -> None:
        for model in (*MODELS, OTHER):
            for reason in Reason:
                for name in (*self._classes, NO_CLASS):
                    self._requests.labels(model, name, reason.outcome.value, reason.value)
            for name in self._classes:
                for each in (self._tokens, self._ttft, self._tpot, self._total, self._queue):
                    each.labels(model, name)
        for name, promise in self._classes.items():
            if promise.has_slo:
                self._goodput.labels(name)
                for outcome in Outcome:
                    self._excluded.labels(name, outcome.value)
                for dimension in _dimensions(promise):
                    self._eligible.labels(name, dimension)
                    self._met.labels(name, dimension)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(METRIC_PREFIX + name, text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(METRIC_PREFIX + name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, edges_s: str, promised_ms: list[float | None]) -> Histogram:
        return Histogram(
            f"{METRIC_PREFIX}{name}_seconds",
            text,
            ("model", "class"),
            registry=self._registry,
            buckets=_edges(edges_s, promised_ms),
        )


def _dimensions(promise: ServiceClass) -> list[str]:
    limits = {"ttft": promise.ttft_ms, "tpot": promise.tpot_ms, "deadline": promise.deadline_ms, "all": 1.0}
    return [name for name, limit in limits.items() if limit is not None]
