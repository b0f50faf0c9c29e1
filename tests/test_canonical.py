"""Canonical JSON: RFC 8785's own examples, and what JSON has no form for."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.canonical import canonical_json, content_key

NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
"""Appendix B: the bits of doubles, and their texts."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_are_written_as_in_appendix_b(bits, text):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json({"": number}) == f'{{"":{text}}}'


def test_the_example_of_section_3_2_2_is_written_as_there():
    given_text = r"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    expected = (
        r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )
    assert canonical_json(json.loads(given_text)) == expected


def test_keys_are_in_the_order_of_section_3_2_3():
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    found = list(json.loads(canonical_json(dict.fromkeys(keys))))
    assert found == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 10**30, 2**64 - 1])
def test_integers_that_no_double_is_are_kept_digit_for_digit(number):
    assert json.loads(canonical_json({"seed": number})) == {"seed": str(number)}


def test_neighbours_beyond_doubles_have_keys_of_their_own():
    keys = {content_key({"seed": 2**60 + step}) for step in range(-3, 4)}
    assert len(keys) == 7


@given(value=JSON)
def test_what_was_written_is_written_the_same_when_it_is_read_again(value):
    text = canonical_json({"": value})
    assert canonical_json(json.loads(text)) == text
    assert text.encode()
