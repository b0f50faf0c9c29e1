"""A recorded request with a fault is named, never bent into another one."""

from __future__ import annotations

import json

import pytest

from trtkit.bench.sim.trace import read_trace
from trtkit.errors import InputError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def row(**other):
    return json.dumps({"timestamp": 0, "input_length": 9, "output_length": 9, **other})


@pytest.mark.parametrize(
    "text",
    [
        row(timestamp=float("nan")),
        row(timestamp=float("inf")),
        row(output_length=True),
        row(output_length=100.9),
        row(output_length="12"),
        row()[:-1] + ', "input_length": 7}',
        AZURE.replace("\n", ",ContextTokens\n") + "2024-05-10 00:00:00,100,9,9\n",
        AZURE + "yesterday,100,9\n",
    ],
)
def test_a_fault_of_a_trace_is_named_with_its_line(tmp_path, text):
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(InputError, match=r"line \d is no request"):
        read_trace(file)


def test_stamps_of_any_zone_and_number_of_digits_are_read(tmp_path):
    file = tmp_path / "trace.csv"
    stamps = ("2024-05-10 00:00:02.00993+00:00", "2024-05-10 02:00:03+02:00", "2024-05-10 00:00:04.0000001")
    file.write_text(AZURE + "".join(f"{stamp},1,1\n" for stamp in stamps))
    assert [each.at_s for each in read_trace(file)] == pytest.approx([0, 0.99007, 1.99007])
