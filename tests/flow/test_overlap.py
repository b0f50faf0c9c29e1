"""Texts that are calibrated with and judged by: found however they are cut."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.contract import load_contract
from trtkit.errors import ContractError
from trtkit.flow.overlap import overlap_warnings
from trtkit.quantize.calibrate import texts
from trtkit.quantize.fingerprint import Fingerprint, shared_part

HELD = texts.held_out()
OWN = texts.calibration()[: len(HELD) // 2]


def paragraphs(text):
    return "".join(json.dumps({"text": each}) + "\n" for each in text.split("\n\n"))


@pytest.fixture
def told(contract, tmp_path):
    """Return what is said of a calibration's text beside a gate's; None is the built-in one."""

    def run(read, held) -> str:
        gate = {"samples": 32, "sample_tokens": 512}
        calibration = {"samples": 3, "max_length": 32}
        if read is not None:
            (tmp_path / "read.jsonl").write_text(read)
            calibration["data"] = "read.jsonl"
        if held is not None:
            (tmp_path / "held.txt").write_text(held)
            gate["data"] = "held.txt"
        path = contract("fp8", calibration=calibration, gate=gate)
        return " ".join(map(str, overlap_warnings(load_contract(path))))

    return run


@pytest.mark.parametrize("held", [HELD, None, HELD.replace("\n", " ")])
def test_the_same_text_is_refused_however_it_is_cut(told, held):
    with pytest.raises(ContractError, match=r"quantization\.gate\.data: the gate would read nothing but"):
        told(paragraphs(HELD), held)


@pytest.mark.parametrize(
    ("read", "held", "said"),
    [
        (paragraphs(OWN), HELD + OWN, "% of the text of the gate is calibrated with, too"),
        (None, HELD + OWN, "% of the text of the gate is calibrated with, too"),
        (paragraphs(OWN), HELD, ""),
        (paragraphs(OWN), None, ""),
    ],
)
def test_a_part_that_is_shared_is_told(told, read, held, said):
    found = told(read, held)
    assert said in found if said else found == ""


def test_what_the_gate_does_not_come_to_is_not_compared():
    assert shared_part(["a b c d e f g h i", "k l m n o p q r s"], ["k l m n o p q r s"], most_words=9) == 0
    assert shared_part(["two words"], ["Two", "words"]) == 1
    assert shared_part([""], ["two words"]) == 0


def test_alpha_is_not_chosen_by_a_copy_of_what_the_gate_reads(trtkit, contract, tmp_path):
    (tmp_path / "copy.txt").write_text(HELD[len(HELD) * 3 // 4 :])
    path = contract("int8-sq", alpha="auto", gate={"data": "copy.txt", "samples": 8, "sample_tokens": 64})
    code, _, err = trtkit("build", path, "--dry-run")
    assert code == 2
    assert "alpha would be chosen by text that the gate reads" in err
    path.write_text(path.read_text().replace("alpha: auto", "alpha: 0.5"))
    assert trtkit("build", path, "--dry-run")[0] == 0


def letters(seed, count=200):
    """Words of one letter, which no piece of a text cuts."""
    return " ".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=count)) + " "


@pytest.fixture
def by_hand(trtkit, model, tmp_path):
    """Calibrate and convert by hand; return what a gate that reads a text says."""
    pytest.importorskip("torch")
    (tmp_path / "read.txt").write_text(letters(0))
    ranges, out = tmp_path / "ranges.safetensors", tmp_path / "fp8"
    pieces = ("--samples", 99, "--max-length", 40)
    trtkit("calibrate", model, "-o", ranges, "--data", tmp_path / "read.txt", *pieces)
    assert trtkit("convert", model, "-o", out, "--weights", "fp8", "--act-range", ranges)[0] == 0

    def judge(text, *edits):
        (tmp_path / "held.txt").write_text(text)
        for edit in edits:
            edit(out / "config.json")
        more = ("--data", tmp_path / "held.txt", "--samples", 9, "--sample-tokens", 40, "--max-kl", 9)
        return trtkit("gate", model, out, *more, "--min-top1", 0, "--output", "json")

    return judge


@pytest.mark.parametrize(
    ("text", "exit_code", "said"),
    [
        (letters(0), 2, "nothing but what the candidate is calibrated with"),
        (letters(0, 100) + letters(1, 100), 0, "% of the text of the gate is calibrated with, too"),
        (letters(1), 0, ""),
    ],
)
def test_a_gate_by_hand_knows_the_text_that_its_candidate_was_calibrated_with(by_hand, text, exit_code, said):
    code, out, err = by_hand(text)
    assert code == exit_code
    assert said in err if said else "is calibrated with" not in err
    if code == 0:
        assert (json.loads(out)["calibrated_part"] > 0) == bool(said)


def test_a_fingerprint_that_was_damaged_is_refused(by_hand):
    def damage(path):
        config = json.loads(path.read_text())
        config["trtkit"]["calibrated_with"] = "!"
        path.write_text(json.dumps(config))

    code, _, err = by_hand(letters(1), damage)
    assert code == 2
    assert "trtkit.calibrated_with: not a fingerprint" in err


@given(st.lists(st.sampled_from("abc"), max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
def test_a_fingerprint_of_a_short_text_is_exact(held, read):
    held, read = [" ".join(held)], [" ".join(read)]
    found = Fingerprint.parse(Fingerprint.of(read).spelled())
    assert found.part_of(held) == pytest.approx(shared_part(held, read))


def test_a_fingerprint_of_a_long_text_is_near():
    long = [texts.calibration()[:200_000]]
    found = Fingerprint.of(long)
    assert len(found.hashes) == 1024
    assert found.part_of([long[0][:50_000]]) > 0.99
    assert found.part_of([long[0][:50_000] + HELD[:50_000]]) == pytest.approx(0.5, abs=0.08)
    assert found.part_of([HELD]) < 0.02
