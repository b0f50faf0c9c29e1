"""TensorRT for RTX as the executor. What needs a device has not been run on one yet."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.engine_cpu.conftest import tiny_plan
from trtkit.checkpoint.progress import silent
from trtkit.contract import load_contract
from trtkit.engine.backend import backend_for
from trtkit.engine.serving import open_engine
from trtkit.engine.slots.cuda import Device
from trtkit.engine.slots.executor import Batch
from trtkit.engine.slots.folder import SlotFolder
from trtkit.engine.slots.rtx import RtxExecutor
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.flow.up import check_served_here

pytest.importorskip("tensorrt_rtx")
pytest.importorskip("cuda.bindings.runtime")


def device_sm():
    try:
        device = Device()
    except EnvironmentLacks:
        return None
    try:
        return device.sm
    finally:
        device.close()


SM = device_sm()


@pytest.fixture
def folder(slots_dir, tmp_path):
    """An engine folder as the back end rtx writes it, without the engine."""
    config = json.loads((slots_dir / "config.json").read_text())

    def write(**runtime):
        config["backend"] = "rtx"
        config["runtime"] = {"engine": "model.engine", "engine_sms": [80, 89], "other_sms": []} | runtime
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


@pytest.mark.skipif(SM is not None, reason="there is a device")
def test_without_a_device_it_says_so(folder):
    with pytest.raises(EnvironmentLacks, match="there is no CUDA device") as caught:
        open_engine(folder())
    assert "engine.backend: onnx" in caught.value.hint
    assert "needs driver 580 or later, found " in caught.value.message


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("NVRM version: something else", "one of unknown version"),
    ],
)
@pytest.mark.skipif(SM is not None, reason="there is a device")
def test_the_driver_that_was_found_is_named(tmp_path, monkeypatch, line, version):
    file = tmp_path / "version"
    file.write_text(f"{line}\nGCC version: gcc version 12.2.0\n")
    monkeypatch.setattr("trtkit.engine.slots.cuda._DRIVER_FILE", file)
    with pytest.raises(EnvironmentLacks, match=f"found {version}"):
        Device()


@pytest.mark.skipif(SM is not None, reason="there is a device")
def test_without_a_device_nothing_is_built_to_be_served_here():
    contract = "build_configs/smollm2-135m__none-kv_auto__rtx-pro-6000-tp1.yaml"
    with pytest.raises(EnvironmentLacks, match="there is no CUDA device"):
        check_served_here(load_contract(Path(contract)).contract)


def test_a_folder_without_an_engine_is_refused(folder):
    with pytest.raises(InputError, match="no engine that was compiled"):
        open_engine(folder(engine=None))


def test_slots_that_would_not_be_aligned_are_refused(slots_dir, folder):
    opened = SlotFolder.open(folder())
    odd = replace(opened, spec=replace(opened.spec, capacity_tokens=301))
    with pytest.raises(InputError, match="38528 bytes of a cache, which is no multiple of 256") as caught:
        RtxExecutor(odd)
    assert "a multiple of 2," in caught.value.hint


@pytest.mark.skipif(SM is None, reason="there is no CUDA device")
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_logits_are_those_of_the_same_graph_on_the_cpu(
    checkpoint, client, tmp_path, monkeypatch, cuda_graphs
):
    monkeypatch.setenv("TRTKIT_HOME", str(tmp_path / "home"))
    plan = replace(tiny_plan(max_batch_size=6, max_num_tokens=48), backend="rtx", dtype="float32")
    plan = replace(plan, target=SimpleNamespace(sms=(SM,)))
    (tmp_path / "engine").mkdir()
    backend_for("rtx").compile(checkpoint, tmp_path / "engine", plan, silent, tmp_path / "log")
    executor = RtxExecutor(SlotFolder.open(tmp_path / "engine"), cuda_graphs=cuda_graphs)
    batches = [
        Batch("prefill", 1, [list(range(40))], [0]),
        Batch("prefill", 1, [list(range(9))], [40]),
        Batch("prefill", 3, [[7, 8, 9]], [0]),
        Batch("decode", 1, [[5], [0], [6]], [49, 0, 3]),
        Batch("decode", 1, [[4], [0], [3]], [50, 0, 4]),
    ]
    for batch in batches:
        expected = client.engine._executor.run(batch)
        used = [0] if batch.phase == "prefill" else [0, 2]
        np.testing.assert_allclose(executor.run(batch)[used], expected[used], atol=0.05)
    executor.close()
    assert list((tmp_path / "home" / "jit").glob("tensorrt-rtx-*.cache"))
