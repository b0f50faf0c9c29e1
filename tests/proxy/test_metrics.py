"""What is exposed, measured and judged."""

from __future__ import annotations

import asyncio
import math

import grpc
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.proxy.conftest import CLASSES, ask
from tests.proxy.fake_triton import final_chunk, text_chunk
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import Outcome, Reason
from trtkit.proxy.metrics import Metrics
from trtkit.proxy.scrape import render
from trtkit.proxy.slo import Timeline, Verdict, judge, kept_all

PROMISE = ServiceClass(priority=1, ttft_ms=100.0, tpot_ms=10.0, deadline_ms=1000.0)
MET, MISSED, EXCLUDED = Verdict.MET, Verdict.MISSED, Verdict.EXCLUDED


def timeline(first=0.1, last=0.19, end=0.2, tokens=10, streams=True) -> Timeline:
    """Ten tokens, the first after 100 ms, then one every 10 ms: every promise just kept."""
    return Timeline(0.0, streams, 0.0, first, last, end, tokens)


@pytest.mark.parametrize(
    ("outcome", "line", "ttft", "tpot", "deadline"),
    [
        (Outcome.OK, timeline(last=0.185), MET, MET, MET),
        (Outcome.OK, timeline(first=0.11, last=0.195), MISSED, MET, MET),
        (Outcome.OK, timeline(last=0.3, end=0.3), MET, MISSED, MET),
        (Outcome.OK, timeline(last=0.185, end=1.1), MET, MET, MISSED),
        (Outcome.OK, timeline(tokens=1, last=0.1), MET, EXCLUDED, MET),
        (Outcome.OK, timeline(streams=False), EXCLUDED, EXCLUDED, MET),
        (Outcome.REFUSED, Timeline(0.0, ended_s=0.0), MISSED, MISSED, MISSED),
        (Outcome.TIMED_OUT, timeline(), MISSED, MISSED, MISSED),
        (Outcome.FAILED, timeline(), MISSED, MISSED, MISSED),
        (Outcome.REFUSED, Timeline(0.0, streams=False, ended_s=0.0), EXCLUDED, EXCLUDED, MISSED),
        (Outcome.FAILED, Timeline(0.0, ended_s=0.0, most_tokens=1), MISSED, EXCLUDED, MISSED),
        (Outcome.INVALID, Timeline(0.0, ended_s=0.0), EXCLUDED, EXCLUDED, EXCLUDED),
        (Outcome.CANCELLED, Timeline(0.0, ended_s=0.05), EXCLUDED, EXCLUDED, EXCLUDED),
        (Outcome.CANCELLED, Timeline(0.0, ended_s=0.15), MISSED, EXCLUDED, EXCLUDED),
        (Outcome.CANCELLED, timeline(end=1.5), EXCLUDED, EXCLUDED, MISSED),
    ],
)
def test_each_promise_is_judged_by_the_counting_rules(outcome, line, ttft, tpot, deadline):
    assert judge(PROMISE, outcome, line) == {"ttft": ttft, "tpot": tpot, "deadline": deadline}


def test_one_miss_is_a_miss_and_nothing_promised_is_nothing_judged():
    assert kept_all({"ttft": MET, "tpot": MISSED}) is MISSED
    assert kept_all({"ttft": MET, "tpot": EXCLUDED}) is MET
    assert kept_all({"ttft": EXCLUDED}) is EXCLUDED
    assert judge(ServiceClass(priority=1), Outcome.REFUSED, timeline()) == {}


def samples(registry):
    families = text_string_to_metric_families(render(registry).decode())
    return {(each.name, *sorted(each.labels.items())): each.value for f in families for each in f.samples}


def test_goodput_of_a_mix_equals_what_the_timelines_say():
    registry = CollectorRegistry()
    metrics = Metrics({"gold": PROMISE, "free": ServiceClass(priority=2)}, registry)
    mix = [
        (Reason.OK, timeline(last=0.185)),
        (Reason.OK, timeline(first=0.2, last=0.28, end=0.3)),
        (Reason.OK, timeline(last=0.5, end=0.5)),
        (Reason.OK, timeline(last=0.185, end=2.0)),
        (Reason.SHED, Timeline(0.0, ended_s=0.0)),
        (Reason.TRUNCATED_STREAM, timeline()),
        (Reason.CLIENT_CANCELLED, Timeline(0.0, ended_s=0.01)),
    ]
    for reason, line in mix:
        metrics.observe("ensemble", "gold", reason, line)
        metrics.observe("ensemble", "free", reason, line)
    values = samples(registry)
    gold = {dimension: (("class", "gold"), ("dimension", dimension)) for dimension in ("ttft", "tpot", "all")}
    eligible, met = "trtkit_proxy_slo_eligible_total", "trtkit_proxy_slo_met_total"
    assert [(values[(eligible, *gold[d])], values[(met, *gold[d])]) for d in gold] == [(6, 3), (6, 3), (6, 1)]
    assert values["trtkit_proxy_goodput_requests_total", ("class", "gold")] == 1
    assert values["trtkit_proxy_slo_excluded_total", ("class", "gold"), ("outcome", "cancelled")] == 1
    assert not any("free" in str(key) and "slo" in key[0] for key in values)


async def test_every_series_exists_before_traffic_and_none_is_added_by_it(front):
    before = set(samples(front.proxy.registry))
    assert all(
        value == 0 for key, value in samples(front.proxy.registry).items() if key[0].endswith("_total")
    )
    for n in range(20):
        await ask(front.address, request_id=f"random-{n}", headers={"x-trtkit-class": "interactive"})
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(front.address, headers={"x-trtkit-class": f"class-{n}"})
    assert set(samples(front.proxy.registry)) == before


async def test_names_units_and_labels_are_fixed(front):
    families = list(text_string_to_metric_families(await front.scrape()))
    assert all(family.name.startswith("trtkit_proxy_") and family.documentation for family in families)
    labels = {key for family in families for sample in family.samples for key in sample.labels}
    assert labels == {
        *(
            "model",
            "class",
            "outcome",
            "reason",
            "dimension",
            "zone",
            "le",
            "constraint",
            "bucket",
            "suspicion",
            *("backend", "pool", "upstream", "health"),
        )
    }
    assert {family.name for family in families if family.type == "histogram"} == {
        "trtkit_proxy_time_to_first_token_seconds",
        "trtkit_proxy_time_per_output_token_seconds",
        "trtkit_proxy_request_duration_seconds",
        "trtkit_proxy_queue_duration_seconds",
    }


def test_promises_are_bucket_edges():
    registry = CollectorRegistry()
    Metrics(CLASSES, registry)
    edges = {dict(key[1:])["le"] for key in samples(registry) if "first_token_seconds_bucket" in key[0]}
    assert "2.0" in edges


async def test_times_are_measured_at_the_proxy(front, fake):
    async def slow(request, context):
        await asyncio.sleep(0.3)
        for _ in range(11):
            yield text_chunk(request)
            await asyncio.sleep(0.02)
        yield final_chunk(request)

    fake.script = slow
    await ask(front.address)
    ttft_s, tpot_s, total_s, queue_s = [
        await front.metric(f"{name}_seconds_sum")
        for name in ("time_to_first_token", "time_per_output_token", "request_duration", "queue_duration")
    ]
    assert ttft_s == pytest.approx(0.3, abs=0.06)
    assert tpot_s == pytest.approx(0.022, abs=0.008)
    assert total_s == pytest.approx(0.3 + 11 * 0.022, abs=0.15)
    assert queue_s < 0.05
    assert await front.metric("output_tokens_total") == 11


async def test_after_any_mix_of_ends_outcomes_sum_to_arrivals_and_nothing_is_left(fake, serve, spawn):
    """Three hundred requests that end well, in errors, in cancels, in refusals, under few slots."""

    async def by_prompt(request, context):
        kind = request.raw_input_contents[0][4:]
        yield text_chunk(request)
        if kind == b"stall":
            await fake.until_stopped(request)
        if kind == b"reset":
            await context.abort(grpc.StatusCode.INTERNAL, "reset")
        if kind != b"cut":
            yield final_chunk(request)

    fake.script = by_prompt
    front = await serve(fake.address, slots=8, max_queue=40)
    await ask(front.address)
    tasks_before = len(asyncio.all_tasks())
    kinds = ["ok", "stall", "reset", "cut", "x" * 300]
    given_up = []

    async def one(n):
        try:
            timeout_us = 200_000 if n % 5 == 1 and n % 2 else None
            call = ask(front.address, kinds[n % 5], timeout=timeout_us)
            await asyncio.wait_for(call, 0.4 if n % 5 == 1 and not n % 2 else 20)
        except asyncio.TimeoutError:
            given_up.append(n)
        except (grpc.aio.AioRpcError, InferenceServerException):
            pass

    for wave in range(6):
        await asyncio.gather(*(one(n) for n in range(wave, wave + 50)))
    for gauge in ("inflight_requests", "queue_depth", "cancelling_requests", "zone_used"):
        await front.until(0, gauge)
    arrived = await front.metric("requests_total")
    # On a busy machine a client may give up before its request has left.
    assert 301 - len(given_up) <= arrived <= 301
    reasons = {}
    for reason in Reason:
        if count := await front.metric("requests_total", reason=reason.value):
            reasons[reason] = count
    assert {
        Reason.OK,
        Reason.DEADLINE,
        Reason.UPSTREAM_ERROR,
        Reason.TRUNCATED_STREAM,
        Reason.TOO_LONG,
    } <= set(reasons)
    assert math.isclose(sum(reasons.values()), arrived)
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= tasks_before + 2
