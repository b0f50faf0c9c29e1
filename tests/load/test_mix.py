import random
import re
from dataclasses import astuple, replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from trtkit.bench.arrivals import Arrivals
from trtkit.bench.filler import Filler
from trtkit.bench.mix import Manners, mix_of
from trtkit.bench.schedule import Shape
from trtkit.bench.sim.trace import TraceRow
from trtkit.bench.sim.workload import length_tables
from trtkit.contract import Contract
from trtkit.errors import InputError

CONTRACT = Contract.model_validate(
    {
        "name": "x",
        "model": {"source": "m"},
        "engine": {"backend": "cpu", "limits": {"max_input_len": 512, "max_seq_len": 768}},
        "classes": {
            "a": {"priority": 1, "ttft_ms": 500, "max_prompt_tokens": 256, "max_output_tokens": 64},
            "b": {"priority": 2, "deadline_ms": 9000},
        },
    }
)
TRAFFIC = ("a=azure2023_code:3", "b=mooncake_conversation")


def shots(mix, filler, seed=1, rate=20.0, duration=30.0):
    return mix.shots(filler, rate_per_s=rate, duration_s=duration, seed=seed)


@pytest.mark.parametrize("tokens", [1, 2, 17, 500])
def test_a_prompt_has_exactly_as_many_tokens_as_asked(filler, words_file, tokens):
    text = filler.write(tokens, random.Random(0))
    assert len(Tokenizer.from_file(str(words_file)).encode(text).ids) == tokens


def test_a_file_that_is_no_tokenizer_is_named(tmp_path, tokenizer_file):
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(InputError, match="cannot load"):
        Filler.load(broken)
    with pytest.raises(InputError, match="only 0 of its words"):
        Filler.load(tokenizer_file)


def test_a_seed_draws_the_same_requests_in_other_words(filler):
    mix = replace(mix_of(CONTRACT, TRAFFIC, 5), manners=Manners(cancels=0.2, slow_readers=0.2))
    first, again, other = (
        [astuple(replace(shot, prompt="")) for shot in shots(mix, filler, seed)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert {each.prompt for each in shots(mix, filler)}.isdisjoint(each.prompt for each in shots(mix, filler))


def test_lengths_stay_within_class_and_engine(filler):
    found = shots(mix_of(CONTRACT, TRAFFIC), filler)
    assert max(each.prompt_tokens for each in found if each.class_name == "a") == 256
    assert max(each.max_tokens for each in found if each.class_name == "a") <= 64
    assert max(each.prompt_tokens for each in found) == 512
    assert all(each.prompt_tokens + each.max_tokens <= 768 for each in found)


def test_shares_tenants_and_deadlines_are_as_asked(filler):
    mix = replace(mix_of(CONTRACT, TRAFFIC, 5), manners=Manners(deadlines=True))
    found = shots(mix, filler, duration=60.0)
    of_a = [each for each in found if each.class_name == "a"]
    assert len(of_a) / len(found) == pytest.approx(0.75, abs=0.06)
    assert len({each.tenant for each in found}) == 5
    assert {each.deadline_s for each in of_a} == {None}
    assert {each.deadline_s for each in found if each.class_name == "b"} == {9.0}


def test_how_many_lengths_are_cut_is_said():
    table = length_tables()["azure2023_code"]
    told = mix_of(CONTRACT, ["a=azure2023_code"]).described()["a"]
    share = int(re.search(r"100% \((\d+)% of prompts", told).group(1)) / 100
    # Percentiles are the table's own: the share above 256 tokens is read off where they cross it.
    assert share == pytest.approx(1 - np.interp(256, table.prompt_tokens, table.percentiles) / 100, abs=0.05)
    assert mix_of(
        CONTRACT.model_copy(update={"engine": Contract.model_fields["engine"].default}), ["b=azure2023_code"]
    ).described() == {"b": "azure2023_code 100%"}
    trace = Arrivals(Shape.REPLAY, trace=[TraceRow(0.0, 100, 5), TraceRow(1.0, 999, 5)])
    assert replace(mix_of(CONTRACT, ["a=azure2023_code"]), arrivals=trace).described() == {
        "a": "trace 100% (50% of prompts cut)"
    }


def test_the_simulator_plays_the_requests_that_are_sent(filler):
    mix = replace(mix_of(CONTRACT, TRAFFIC, 5), scale=0.3)
    sent = shots(mix, filler)
    played = mix.jobs(rate_per_s=20.0, duration_s=30.0, seed=1)
    assert [(job.arrival_s, job.prompt_tokens, job.max_tokens) for job in played] == [
        (shot.at_s, shot.prompt_tokens, shot.max_tokens) for shot in sent
    ]
    assert all(job.output_tokens == job.max_tokens and job.left_tokens == job.prompt_tokens for job in played)


def test_manners_are_as_frequent_as_asked_and_independent(filler):
    mix = replace(mix_of(CONTRACT, ["b=azure2023_conversation"]), manners=Manners(0.5, 0.3))
    found = shots(mix, filler, duration=60.0)
    leaves = [each for each in found if each.cancel_after_tokens is not None]
    assert len(leaves) / len(found) == pytest.approx(0.5, abs=0.06)
    assert sum(each.read_pause_s > 0 for each in leaves) / len(leaves) == pytest.approx(0.3, abs=0.07)
    assert all(0 <= each.cancel_after_tokens < each.max_tokens for each in leaves)
    assert not any(each.cancel_after_tokens for each in shots(replace(mix, manners=Manners()), filler))


def test_a_replay_has_the_lengths_of_the_trace(filler):
    trace = [TraceRow(float(n), 10 + n, 5 + n) for n in range(20)]
    mix = replace(mix_of(CONTRACT, ["b=azure2023_code"]), arrivals=Arrivals(Shape.REPLAY, trace=trace))
    found = shots(mix, filler, rate=1.0, duration=10.0)
    assert [(each.prompt_tokens, each.max_tokens) for each in found] == [(10 + n, 5 + n) for n in range(10)]


@pytest.mark.parametrize(
    "text", ["c=azure2023_code", "a=none", "a=azure2023_code:0", "a=azure2023_code:x", "a"]
)
def test_traffic_that_cannot_be_is_named(text):
    with pytest.raises(InputError, match="is not CLASS=TABLE"):
        mix_of(CONTRACT, [text])
