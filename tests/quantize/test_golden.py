"""Checkpoints of TensorRT-LLM's own converter, byte for byte."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from trtkit.catalog.parallel import Parallelism

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(
    ("case", "weights", "arguments"),
    [
        ("llama_sq_pc_pt_tp1", "int8-sq", {}),
        ("llama_sq_pc_pt_tp2", "int8-sq", {}),
        ("llama_sq_pertensor_tp1", "int8-sq", {"smoothquant": "per-tensor"}),
        ("llama_int8kv_tp1", "none", {"kv_cache": "int8"}),
        ("llama_fp8rowwise_tp1", "fp8-rowwise", {}),
        ("llama_int8wo_tp1_sm80", "int8-wo", {"target_sm": 80}),
    ],
)
def test_tensors_and_quantization_are_those_of_the_reference(case, weights, arguments, write):
    folder = GOLDEN / "cases" / case
    expected, config = (json.loads((folder / name).read_text()) for name in ("expected.json", "config.json"))
    source = GOLDEN / "sources" / expected["source"]
    ranges = source / "act_range.safetensors"
    if ranges.exists():
        arguments = arguments | {"ranges": ranges}
    ranks = Parallelism(tp=len(expected["tensors"]))
    written = write(source, weights, dtype=config["dtype"], ranks=ranks, **arguments)
    for rank, facts in enumerate(expected["tensors"].values()):
        digests = {
            name: sha256(written.tensor(name, rank).tobytes()).hexdigest() for name in written.ranks[rank]
        }
        assert digests == {name: fact["sha256"] for name, fact in facts.items()}
        assert {name: info.dtype for name, info in written.ranks[rank].items()} == {
            name: fact["dtype"] for name, fact in facts.items()
        }
    block = written.config["quantization"]
    assert block == {key: config["quantization"][key] for key in block}
    defaults = {"group_size": 128, "smoothquant_val": 0.5, "has_zero_point": False, "pre_quant_scale": False}
    left_out = {key: value for key, value in config["quantization"].items() if key not in block and value}
    assert left_out.items() <= defaults.items()
