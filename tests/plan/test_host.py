"""Memory of calibrating and converting, foreseen from a configuration, and what is refused by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.synthetic import SyntheticModel
from tests.plan.published import FOLDER, published
from tests.plan.test_cli import run
from trtkit.catalog.gpus import GPUS
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import ContractError
from trtkit.flow import machine
from trtkit.plan import Machine
from trtkit.plan.host import RANKS, layer_bytes, layerwise_need, node_bytes, smallest_node, whole_need
from trtkit.plan.resolve import quant_plan

LARGE = FOLDER / "llama-3.3-70b.json"


def test_a_model_that_a_gpu_does_not_hold_whole_is_refused_with_the_parts_and_the_ways_out():
    with pytest.raises(ContractError) as caught:
        run(LARGE, "--gpu", "h100-sxm", "--weights", "fp8", "--step", "quantize")
    (problem,) = caught.value.problems
    for part in ("source copy 141", "quantized copy 7", "activations (1 x 512 tokens)", "smoothing peak"):
        assert part in problem.message
    assert "1 x H100 SXM" in problem.message
    assert "the smallest node that holds it is 4 x H100 SXM" in problem.hint
    assert "--layer-wise" in problem.hint


@pytest.mark.parametrize("gpu", [("--gpu", "h100"), ("--backend", "tensorrt")])
def test_a_gpu_that_is_not_known_is_told_before_memory_is_counted(gpu):
    with pytest.raises(ContractError, match=r"engine\.gpu: .*(is no GPU of the catalog|needs a target GPU)"):
        run(LARGE, *gpu, "--weights", "fp8", "--step", "quantize")


def test_a_single_layer_that_is_searched_for_int4_is_counted():
    overrides = "--set", 'quantization.overrides={"transformer.layers.0.mlp*": int4-awq}'
    options = "--weights", "fp8", "--step", "quantize", "--layer-wise", "--output", "json"
    sizes = [
        json.loads(run(LARGE, *options, *more).stdout)["ways"][0]["total_bytes"] for more in ((), overrides)
    ]
    assert sizes[0] < sizes[1]


def test_layers_that_stay_plain_are_counted_as_such():
    whole = ("--weights", "fp8", "--gpu", "h200", "--tp", "2", "--step", "quantize", "--output", "json")
    plain = "--set", 'quantization.exclude=["*.mlp*", lm_head]'
    sizes = [
        json.loads(run(LARGE, *whole, *more).stdout)["ways"][0]["needed_bytes"]["quantized copy"]
        for more in ((), plain)
    ]
    # 80 layers with three of 8192 x 28672, each a byte more.
    assert sizes[1] - sizes[0] == pytest.approx(80 * 3 * 8192 * 28672, rel=0.01)


def test_a_pattern_that_matches_no_layer_is_told_before_memory_is_counted():
    with pytest.raises(ContractError, match=r"'nowhere' matches no layer"):
        run(LARGE, "--weights", "fp8", "--set", "quantization.exclude=[nowhere]", "--step", "quantize")


def test_a_step_of_a_contract_needs_no_weights(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes((FOLDER / "smollm2-135m.json").read_bytes())
    contract = tmp_path / "contract.yaml"
    contract.write_text("name: x\nmodel: {source: model}\nclasses: {a: {priority: 1}}\n")
    done = run(contract, "--weights", "fp8", "--step", "quantize", "--output", "json")
    assert len(json.loads(done.stdout)["ways"]) == 2


def test_layer_by_layer_it_fits_a_small_machine():
    done = run(LARGE, "--weights", "fp8", "--step", "quantize", "--layer-wise", "--output", "json")
    ways = json.loads(done.stdout)["ways"]
    assert [way["way"] for way in ways] == ["calibrating layer by layer", "converting block by block"]
    assert layer_bytes(published("llama-3.3-70b")) < ways[0]["total_bytes"] < 4e9


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.3-70b", "mixtral-8x7b"])
def test_no_smaller_node_of_the_catalog_holds_it(name):
    need = whole_need(published(name), quant_plan("fp8", "auto"), "bfloat16", 512, 1)
    found = smallest_node(need, GPUS.values())
    assert found is not None
    gpu, count = found
    assert need.total_bytes <= node_bytes(gpu, count)
    smaller = [
        (each, ranks)
        for each in GPUS.values()
        for ranks in RANKS
        if ranks * each.memory_bytes < count * gpu.memory_bytes
    ]
    assert all(need.total_bytes > node_bytes(*node) for node in smaller)


def test_a_search_for_int4_takes_more_than_ranges_do():
    model = published("llama-3.1-8b")
    ranges, search = (layerwise_need(model, 512, searches_int4=each).total_bytes for each in (False, True))
    assert search > ranges + 4 * model.intermediate_size**2


def test_formats_without_ranges_are_only_converted():
    done = run(LARGE, "--weights", "int8-wo", "--gpu", "h200", "--step", "quantize", "--output", "json")
    assert [way["way"] for way in json.loads(done.stdout)["ways"]] == ["converting block by block"]


def test_a_quantized_source_is_only_converted_and_to_its_own_format(tmp_path):
    config = json.loads(LARGE.read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = ("--gpu", "h100-sxm", "--step", "quantize", "--output", "json")
    done = run(tmp_path / "config.json", "--weights", "int4-awq", *asked)
    assert [way["way"] for way in json.loads(done.stdout)["ways"]] == ["converting block by block"]
    with pytest.raises(ContractError, match="fp8 is asked for, and the source has int4-awq"):
        run(tmp_path / "config.json", "--weights", "fp8", *asked)


def test_samples_that_the_model_cannot_read_are_refused():
    asked = ("--step", "quantize", "--set", "quantization.calibration.max_length=9000")
    with pytest.raises(ContractError, match=r"samples of 9,000 tokens"):
        run(FOLDER / "smollm2-135m.json", "--weights", "fp8", *asked)


def test_the_smallest_limit_around_the_process_counts(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("50000000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("70000000\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_CGROUP", tmp_path / "own")
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    place = machine.host_place()
    assert (place.name, place.memory_bytes) == ("this container", 50_000_000)
    assert machine.this_machine() == Machine(cores=2, memory_bytes=50_000_000)
    with pytest.raises(ContractError, match=r"this container has 50 MB"):
        run(FOLDER / "smollm2-135m.json", "--step", "convert")


CONVERTED = """
import sys
from pathlib import Path
from trtkit.cli import app
app(["convert", sys.argv[1], "-o", sys.argv[2], "--tp", "4"], standalone_mode=False)
status = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")))
"""


def test_the_memory_of_a_conversion_to_four_ranks_is_foreseen_within_a_quarter(tmp_path):
    SyntheticModel(200_000_000).write(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", CONVERTED, tmp_path / "model", tmp_path / "out"],
        check=True,
        capture_output=True,
        text=True,
    )
    measured = int(done.stdout.split()[-1])
    four = ("--gpu", "h200", "--tp", "4", "--step", "convert", "--output", "json")
    (way,) = json.loads(run(Path(tmp_path / "model"), *four).stdout)["ways"]
    assert HfCheckpoint.open(tmp_path / "model").config.num_layers > 1
    assert measured == pytest.approx(way["total_bytes"], rel=0.25)
