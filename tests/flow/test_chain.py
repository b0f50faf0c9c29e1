"""Which calibration the formats of a chain take."""

import pytest

from trtkit.contract import Contract
from trtkit.contract.load import ContractFile
from trtkit.flow.chain import attempts


def purposes(tmp_path, weights, *fallback, **quantization):
    content = {"weights": weights, "fallback": list(fallback), "gate": {}, **quantization}
    contract = Contract(
        name="x", model={"source": "x"}, quantization=content, classes={"a": {"priority": 1, "ttft_ms": 5}}
    )
    found = attempts(ContractFile(contract, tmp_path / "contract.yaml", {}))
    return [each.calibration and each.calibration.purpose.value for each in found]


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (["none", "int8-wo", "fp8-rowwise"], [None, None, None]),
        (["int8-sq", "fp8", "int8-wo"], ["ranges", "ranges", None]),
        # What the search for INT4 weights recorded serves the formats after it; none before it waits for a search.
        (["int4-awq", "fp8", "int8-sq"], ["int4-awq", "int4-awq", "int4-awq"]),
        (["fp8", "int4-awq"], ["ranges", "int4-awq"]),
        (["w4a8-awq", "int4-awq", "int4-gptq"], ["w4a8-awq", "w4a8-awq", "int4-gptq"]),
    ],
)
def test_formats_share_what_was_recorded_before(tmp_path, chain, expected):
    assert purposes(tmp_path, *chain) == expected


@pytest.mark.parametrize("kv_cache", ["int8", "fp8"])
def test_a_quantized_cache_takes_ranges_whatever_the_weights(tmp_path, kv_cache):
    assert purposes(tmp_path, "int8-wo", "none", kv_cache=kv_cache) == ["ranges", "ranges"]


def test_each_format_keeps_the_settings_that_are_its_own(tmp_path):
    contract = Contract(
        name="x",
        model={"source": "x"},
        quantization={
            "weights": "int4-awq",
            "fallback": ["int8-sq", "fp8"],
            "gate": {},
            "group_size": 64,
            "alpha": 0.4,
        },
        classes={"a": {"priority": 1, "ttft_ms": 5}},
    )
    found = attempts(ContractFile(contract, tmp_path / "contract.yaml", {}))
    kept = [
        (each.file.contract.quantization.group_size, each.file.contract.quantization.alpha) for each in found
    ]
    assert kept == [(64, None), (None, 0.4), (None, None)]
    assert {each.calibration.group_size for each in found} == {64}
