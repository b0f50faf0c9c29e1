"""Texts that are calibrated with and judged by: found however they are cut."""

from __future__ import annotations

import json

import pytest

from trtkit.contract import load_contract
from trtkit.errors import ContractError
from trtkit.flow.overlap import overlap_warnings, shared_part
from trtkit.quantize.calibrate import texts

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
