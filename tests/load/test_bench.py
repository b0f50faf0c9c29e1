"""The whole command against a Triton of the test's, and what its runs say together."""

import asyncio
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from tests.load.test_tally import measured
from tests.proxy.fake_triton import final_chunk, text_chunk
from trtkit.bench.calibration import fit_rows
from trtkit.bench.capacity import Capacity
from trtkit.bench.experiment import BenchResult, Experiment, Run
from trtkit.bench.load import Target
from trtkit.bench.mix import mix_of
from trtkit.bench.probe import probe_engine
from trtkit.bench.summary import summary
from trtkit.bench.tally import Tallier
from trtkit.contract import Contract
from trtkit.proxy.admission import Outcome

SCHEMA = Path(__file__).parents[2] / "trtkit" / "bench" / "result.schema.json"
TEXT = """
name: x
model: {source: nowhere}
engine: {backend: cpu, limits: {max_input_len: 64, max_seq_len: 96}}
classes:
  a: {priority: 1, ttft_ms: 1000}
  b: {priority: 2, ttft_ms: 2000, sheddable: true}
objective: {attainment: 0.9}
"""


@pytest.fixture
def contract(tmp_path):
    path = tmp_path / "contract.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def bench(contract, fake, words_file):
    """Run `trtkit bench`; return its exit code, document and stderr."""

    async def run(*arguments):
        known = ("--contract", contract, "--tokenizer", words_file, "--output", "json")
        command = ("bench", fake.address, *known, *arguments)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trtkit", *map(str, command)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, told = await process.communicate()
        return process.returncode, json.loads(out), told.decode()

    return run


async def test_the_command_writes_a_document_a_page_and_the_requests(bench, tmp_path):
    page, requests = tmp_path / "page.html", tmp_path / "requests.jsonl"
    files = ("--html", page, "--requests", requests)
    code, document, told = await bench(
        "--rate", "20,40", "--duration", 1, "--seeds", 2, "--slo-check", *files
    )
    assert code == 0, told
    TypeAdapter(BenchResult).validate_python(document)
    assert [(run["rate_per_s"], run["seed"]) for run in document["runs"]] == [
        (20, 0),
        (20, 1),
        (40, 0),
        (40, 1),
    ]
    assert all(run["tally"]["attainment"] == 1 for run in document["runs"])
    sent = [run["sent_per_s"] for run in document["runs"] if run["rate_per_s"] == 40]
    assert document["goodput_capacity_per_s"] == pytest.approx(sum(sent) / 2)
    html = page.read_text()
    assert html.count("<svg") == 6
    assert "http" not in html.replace("http-equiv", "")
    rows = [json.loads(line) for line in requests.read_text().splitlines()]
    assert len(rows) == sum(run["tally"]["requests"] for run in document["runs"])


async def test_a_missed_objective_exits_6_with_the_document(bench, fake):
    async def script(request, context):
        reply = final_chunk(request)
        reply.error_message = "[RESOURCE_EXHAUSTED] queue_full: the queue is full"
        yield reply

    fake.script = script
    code, document, told = await bench("--rate", 20, "--duration", 1, "--slo-check")
    assert code == 6
    assert document["missed"] == ["a at 20/s: 0.0% kept, 90.0% promised"]
    assert document["error"]["exit_code"] == 6
    assert "a at 20/s" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "how much is to be sent"),
        (("--rate", "1", "--rho", "1"), "how much is to be sent"),
        (("--rate", "1,x"), "no list of different numbers"),
        (("--rate", "1,1"), "no list of different numbers"),
        (
            ("--rate", "1", "--traffic", "a=azure2023_code", "--traffic", "a=azure2023_code"),
            "names a class twice",
        ),
        (("--rate", "1", "--arrivals", "replay"), "need each other"),
        (("--rate", "1", "--traffic", "c=azure2023_code"), "is not CLASS=TABLE"),
        (("--rate", "0.0001", "--duration", "1"), "requests/s for 1 s are 0.0001 requests"),
        (("--rate", "1", "--arrivals", "step", "--duration", "20"), "too short for a step"),
        (("--rate", "1", "--cv", "2"), "--cv: nothing would come of it"),
        (("--rate", "1", "--keep-stamps"), "--keep-stamps: nothing would come of it"),
        (("--rate", "1", "--capacity", "2", "--level", "3"), "--capacity, --level: nothing would come"),
        (("--rho", "1", "--capacity", "2", "--capacity-target", "h:1"), "--capacity-target: nothing"),
        (("--rate", "1", "--buckets", "100,50"), "no growing numbers"),
        (("--rate", "1", "--buckets", "0.5"), "no growing numbers"),
        (("--rate", "1", "--scale", "nan"), "'--scale'"),
        (("--rho", "1", "--capacity", "nan"), "'--capacity'"),
        (("--rate", "1", "--html", "/nonexistent/x.html"), "--html cannot be written"),
        (("--rate", "1", "--html", "/proc/x.html"), "--html cannot be written"),
        (("--rate", "1", "--html", "x", "--requests", "x"), "name one file twice"),
        (("--rate", "1", "--slo-check", "--set", "classes.a.sheddable=true"), "has nothing to check"),
        (("--rho", "1", "--capacity-target", "h"), "is no HOST:PORT"),
    ],
)
def test_what_cannot_be_asked_is_named(trtkit, contract, words_file, arguments, message):
    command = ("bench", "nowhere:1", "--contract", contract, "--tokenizer", words_file)
    code, out, told = trtkit(*command, *arguments)
    assert (code, out, message in told) == (2, "", True)


@pytest.mark.parametrize("option", ["--requests", "--html", "--calibration"])
def test_no_file_that_is_read_is_written_over(trtkit, contract, words_file, option):
    before = words_file.read_bytes()
    command = ("bench", "nowhere:1", "--contract", contract, "--tokenizer", words_file, "--rate", "1")
    for name, path in (("--contract", contract), ("--tokenizer", words_file)):
        code, _, told = trtkit(*command, option, path)
        assert (code, f"{option} would overwrite the file of {name}" in told) == (2, True), told
    assert words_file.read_bytes() == before


async def test_what_ended_before_an_interruption_is_told_and_kept(contract, fake, words_file, tmp_path):
    requests = tmp_path / "requests.jsonl"
    command = ["bench", fake.address, "--contract", contract, "--tokenizer", words_file, "--output", "json"]
    command += ["--rate", 20, "--duration", 1, "--seeds", 50, "--requests", requests]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trtkit", *map(str, command)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    while b"seed 1" not in await process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    out, _ = await process.communicate()
    document = json.loads(out)
    assert process.returncode == document["error"]["exit_code"] == 5
    assert "interrupted" in document["error"]["message"]
    assert [run["seed"] for run in document["runs"] if not run["discarded"]] == [0]
    kept = sum(run["tally"]["requests"] for run in document["runs"])
    assert len(requests.read_text().splitlines()) == kept


async def test_what_had_ended_of_an_interrupted_run_is_kept_and_counts_nowhere(fake, filler):
    contract = Contract.model_validate(yaml.safe_load(TEXT))
    told = []
    async with Target(fake.address, filler) as target:
        mix = mix_of(contract, (), limits=contract.engine.limits)
        experiment = Experiment(target, contract, mix, filler, 60.0, on_run=told.append)
        run = asyncio.create_task(experiment.run(20.0, 0))
        await asyncio.sleep(1.5)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    (kept,) = experiment.runs
    assert told == [experiment]
    assert 5 < kept.tally.requests == len(experiment.samples[20.0, 0]) < 100
    assert kept.duration_s < 3
    assert f"discarded: interrupted: {kept.tally.requests} of its" in experiment.result({}).warnings[0]
    assert experiment.goodput_capacity() is None


async def test_manners_do_not_change_the_capacity(bench, fake):
    slots = asyncio.Semaphore(8)

    async def script(request, context):
        async with slots:
            await asyncio.sleep(0.02)
            yield text_chunk(request)
            yield final_chunk(request)

    fake.script = script
    manners = ("--cancel", 0.5, "--deadlines", "--set", "classes.a.deadline_ms=30")
    code, document, told = await bench("--rho", 0.1, "--level", 1, "--duration", 1, *manners)
    assert code == 0, told
    assert sum(level["unanswered"] for level in document["capacity"]["levels"]) == 0


async def test_a_probe_tells_the_speed_of_an_engine(fake, filler):
    """An engine that takes 1 ms a prompt token, and 5 ms a step plus 2 ms a running request."""
    running = 0

    async def script(request, context):
        nonlocal running
        prompt = len(request.raw_input_contents[0].split())
        tokens = int.from_bytes(request.raw_input_contents[1], "little")
        running += 1
        try:
            await asyncio.sleep(0.001 * prompt)
            for _ in range(tokens):
                yield text_chunk(request)
                await asyncio.sleep(0.005 + 0.002 * running)
            yield final_chunk(request)
        finally:
            running -= 1

    fake.script = script
    async with Target(fake.address) as target:
        rows = await probe_engine(target, filler, "a", longest_prompt=300, longest_answer=1000, rounds=1)
        server = await target.described()
    assert server["server"] == "triton 2.51.0"
    assert len(server["model_config_sha256"]) == 64
    fit = fit_rows(rows)
    assert fit.prefill_ms[1] + 300 * fit.prefill_ms[2] == pytest.approx(1, rel=0.4)
    at_4 = fit.step_ms[0] + 4 * fit.step_ms[1] + 4 * 100 * fit.step_ms[2]
    assert at_4 == pytest.approx(13, rel=0.4)


async def test_what_a_bench_measures_is_read_by_plan_and_simulate(
    trtkit, bench, contract, fake, tiny_llama, tmp_path
):
    """An engine that takes 2 ms a prompt token, and 10 ms a step plus 10 ms a running request."""
    running = 0

    async def script(request, context):
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(0.002 * len(request.raw_input_contents[0].split()))
            for _ in range(int.from_bytes(request.raw_input_contents[1], "little")):
                yield text_chunk(request)
                await asyncio.sleep(0.01 + 0.01 * running)
            yield final_chunk(request)
        finally:
            running -= 1

    fake.script = script
    file = tmp_path / "calibration.json"
    engine = ("--set", f"model.source={tiny_llama()}", "--set", "engine.limits.max_batch_size=2")
    code, _, told = await bench("--rate", 5, "--duration", 1, "--calibration", file, *engine)
    assert (code, told.count("engine: ")) == (0, 36), told
    base, linear, square = json.loads(file.read_text())["prefill_ms"]
    assert base + 64 * linear + 64**2 * square == pytest.approx(128, rel=0.4)
    command = (contract, *engine, "--calibration", file, "--output", "json")
    code, out, told = await asyncio.to_thread(trtkit, "plan", *command)
    pace = json.loads(out)["plan"]["pace"]
    assert (code, pace["basis"]) == (0, "measured"), told
    assert pace["step_ms"] == pytest.approx(30, rel=0.4)
    code, out, told = await asyncio.to_thread(
        trtkit, "simulate", *command, "--duration", 5, "--seeds", 1, "--rate", 1
    )
    assert (code, json.loads(out)["engine_known"]) == (0, "measured"), told
    assert str(fake.address) in json.loads(out)["engine_source"]
    other = ("--set", "quantization.weights=int8-wo")
    for verb in ("plan", "simulate"):
        code, _, told = await asyncio.to_thread(trtkit, verb, *command, *other)
        assert (code, "measured on another engine: weights 'none', the plan has 'int8-wo'" in told) == (
            2,
            True,
        )


@pytest.fixture
def experiment(filler):
    contract = Contract.model_validate(yaml.safe_load(TEXT))
    return Experiment(Target("nowhere:1"), contract, mix_of(contract, ()), filler, 10.0)


def add(experiment, rate_per_s, kept, of=10, name="a", seed=0, **rest):
    samples = [measured(name, ttft_s=0.1 if n < kept else 1.5) for n in range(of)]
    tally = Tallier(experiment.contract.classes, (64,), 0.9).tally(samples, 10.0)
    experiment.runs.append(Run(rate_per_s, seed, 10.0, tally, **{"sent_per_s": rate_per_s, **rest}))
    experiment.samples[rate_per_s, seed] = samples


def test_goodput_capacity_is_the_last_rate_before_the_first_miss(experiment):
    for rate, kept in ((1.0, 10), (2.0, 9), (4.0, 8), (8.0, 10)):
        add(experiment, rate, kept)
    assert experiment.goodput_capacity() == 2.0


def test_goodput_capacity_is_what_was_sent_and_not_what_was_asked_for(experiment):
    for seed, sent_per_s in enumerate((1.7, 1.9)):
        add(experiment, 2.0, 10, seed=seed, sent_per_s=sent_per_s)
    assert experiment.goodput_capacity() == pytest.approx(1.8)
    assert experiment.goodput_capacity(1) == 1.9
    assert "goodput capacity: 1.80/s sent or more (by seed 1.70, 1.90)" in summary(experiment.result({}))


async def test_refining_halves_the_gap_between_kept_and_missed(filler):
    class Steps(Experiment):
        async def run(self, rate_per_s, seed):
            add(self, rate_per_s, 10 if rate_per_s <= 2.6 else 5)

    contract = Contract.model_validate(yaml.safe_load(TEXT))
    steps = Steps(Target("nowhere:1"), contract, mix_of(contract, ()), filler, 10.0)
    for rate in (1.0, 2.0, 4.0):
        await steps.run(rate, 0)
    tried = []
    await steps.refine([0], 2, lambda rate, seed: tried.append(rate))
    assert tried == [3.0, 2.5]
    assert steps.goodput_capacity() == 2.5


def test_a_class_of_which_nothing_was_measured_keeps_nothing(experiment):
    add(experiment, 1.0, 10, name="b")
    assert experiment.goodput_capacity() is None
    assert experiment.result({}).missed == ("a at 1/s: nothing was measured",)


def test_a_class_without_traffic_does_not_bound_goodput(filler):
    wide = yaml.safe_load(TEXT)
    wide["classes"]["c"] = {"priority": 3, "ttft_ms": 100}
    contract = Contract.model_validate(wide)
    mix = mix_of(contract, ["a=azure2023_code"])
    experiment = Experiment(Target("nowhere:1"), contract, mix, filler, 10.0)
    add(experiment, 1.0, 10)
    assert experiment.goodput_capacity() == 1.0
    assert experiment.result({}).missed == ("c at 1/s: nothing was measured",)


def test_an_overload_without_a_queue_was_none(experiment):
    experiment.capacity = Capacity(2.7, (), measured=False)
    add(experiment, 4.0, 10, rho=1.5)
    assert "it was given too low" in experiment.result({}).warnings[0]


def test_what_could_never_be_served_is_said(experiment):
    add(experiment, 4.0, 10)
    experiment.samples[4.0, 0].append(measured(kind=Outcome.INVALID))
    assert "could never be served" in experiment.result({}).warnings[0]


def test_a_run_whose_client_was_late_counts_nowhere(experiment):
    tallier = Tallier(experiment.contract.classes, (64,), 0.9)
    assert not experiment._discarded(tallier.tally([measured("a", lag_s=0.049)], 1.0))
    late = experiment._discarded(tallier.tally([measured("a", lag_s=0.051)], 1.0))
    add(experiment, 1.0, 10)
    add(experiment, 2.0, 0, discarded=late)
    found = experiment.result({})
    assert (found.goodput_capacity_per_s, found.missed, len(found.rates)) == (1.0, (), 1)
    assert "discarded: the client itself was late" in found.warnings[0]


def test_where_no_class_binds_nothing_is_kept_and_nothing_is_capacity(filler):
    text = yaml.safe_load(TEXT)
    text["classes"]["a"]["sheddable"] = True
    contract = Contract.model_validate(text)
    experiment = Experiment(Target("nowhere:1"), contract, mix_of(contract, ()), filler, 10.0)
    add(experiment, 1.0, 10)
    found = experiment.result({})
    assert (found.goodput_capacity_per_s, found.binding) == (None, ())
    assert "no class that may not be shed was promised anything" in found.warnings[0]
    assert "goodput capacity: -" in summary(found)


def test_a_target_that_died_is_no_capacity_that_was_measured_too_low(experiment):
    add(experiment, 4.0, 10, rho=1.5)
    dead = measured(kind=Outcome.FAILED)
    experiment.samples[4.0, 0].append(replace(dead, outcome="UNAVAILABLE: gone"))
    assert experiment.result({}).warnings == ("4/s, seed 0: 1 of 11 requests failed: UNAVAILABLE: gone",)
    assert replace(dead, outcome="UNAVAILABLE: gone").engine_tokens == 0


def test_seeds_give_intervals_and_a_capacity_each(experiment):
    for seed, kept in enumerate((10, 10, 8)):
        add(experiment, 1.0, 10, seed=seed)
        add(experiment, 2.0, kept, seed=seed)
    found = experiment.result({})
    assert found.goodput_capacity_by_seed == (2.0, 2.0, 1.0)
    # Of 1, 1 and 0.8 a second: the mean 0.933, and 4.303 * 0.1155 / sqrt(3) = 0.287 around it.
    goodput = found.rates[1].goodput_per_s
    assert (goodput.mean, goodput.low, goodput.seeds) == (
        pytest.approx(0.933, abs=1e-3),
        pytest.approx(0.646, abs=1e-3),
        3,
    )
    assert "95 % interval 0.65 to 1.22 over 3 seeds" in summary(found)
    assert "by seed 2.00, 2.00, 1.00" in summary(found)


def test_the_schema_is_that_of_the_result():
    written = json.loads(SCHEMA.read_text())
    assert written.pop("$schema")
    assert written == TypeAdapter(BenchResult).json_schema(mode="serialization")
