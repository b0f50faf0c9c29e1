"""Step times from tables of measured silicon, and from the library that made them."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.published import FOLDER, published
from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.catalog.silicon import silicon_table
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.flow.silicon import PYTHON, silicon_fit
from trtkit.plan.fit import fit_prefill, fit_step
from trtkit.plan.resolve import quant_plan
from trtkit.plan.silicon import PEAK, find_fit, peak_rate, shape_of, share_of_peak
from trtkit.plan.speed import Roofline, speed_of
from trtkit.plan.types import Basis

SHIPPED = silicon_table().cells
FP8 = quant_plan("fp8", "fp8")


def test_a_model_of_the_same_sizes_is_found_and_any_other_is_not():
    table = find_fit(published("llama-3.3-70b"), "h100-sxm", Parallelism(2), FP8)
    assert table is not None
    assert "aiconfigurator" in table.source
    for ranks in (Parallelism(8), Parallelism(2, 2)):
        assert find_fit(published("llama-3.3-70b"), "h100-sxm", ranks, FP8) is None
    assert find_fit(published("llama-2-70b"), "h100-sxm", Parallelism(2), FP8) is None


def test_what_is_not_in_the_table_is_a_roofline_that_says_so():
    speed = speed_of(published("gemma-2-9b"), GPUS["h100-sxm"], ONE_RANK, FP8, "bfloat16", backend="tensorrt")
    assert isinstance(speed, Roofline)
    assert "roofline" in speed.source
    assert 0.2 < speed.share.step < 1


@pytest.mark.parametrize("gpu", ["h100-sxm", "l20"])
def test_layers_of_several_formats_are_as_fast_as_neither(gpu):
    mixed = replace(FP8, overrides=(("transformer.layers.*.mlp*", "none"),))
    pure, both, plain = (
        speed_of(published("llama-3.1-8b"), GPUS[gpu], ONE_RANK, each, "bfloat16", backend="tensorrt")
        for each in (FP8, mixed, quant_plan("none", "fp8"))
    )
    assert both.basis is Basis.GUESS
    assert pure.prefill_ms(4096) < both.prefill_ms(4096) < plain.prefill_ms(4096) * 1.1
    assert pure.step_ms(1, 512) < both.step_ms(1, 512) < plain.step_ms(1, 512) * 1.1


@pytest.mark.parametrize(
    ("gpu", "weights", "text", "basis"),
    [
        ("h200", "fp8", "h200 reaches with fp8", Basis.ROOFLINE),
        ("h200", "int8-sq", "h200 reaches with formats of the same rate", Basis.GUESS),
        ("l4", "fp8", "another GPU reaches with fp8", Basis.GUESS),
    ],
)
def test_the_share_of_the_roofline_is_the_nearest_that_is_known(gpu, weights, text, basis):
    share = share_of_peak(gpu, weights)
    assert text in share.text
    assert share.basis is basis
    assert 0.2 < share.prefill < 1.05
    assert 0.2 < share.step < 1.05


@pytest.mark.parametrize("gpu", silicon_table().shares)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_borrowed_share_is_no_larger_than_what_it_was_borrowed_from(gpu, weights):
    own, share = silicon_table().shares[gpu], share_of_peak(gpu, weights)
    rate = peak_rate(GPUS[gpu], weights)
    alike = [each for name, each in own.items() if peak_rate(GPUS[gpu], name) == rate]
    if weights not in own:
        assert all(share.prefill <= each[0] and share.step <= each[1] for each in alike)


@pytest.mark.parametrize(
    "cell", SHIPPED, ids=lambda cell: f"{cell.model}-{cell.gpu}-{cell.weights}-tp{cell.tp}"
)
def test_silicon_stays_below_the_roofline_and_in_sight_of_it(cell, capsys):
    model, formats = published(cell.model), quant_plan(cell.weights, cell.kv_cache)
    assert shape_of(model) == cell.shape
    ranks = Parallelism(cell.tp)
    bound = Roofline(model, GPUS[cell.gpu], ranks, formats, "bfloat16", PEAK)
    fit = find_fit(model, cell.gpu, ranks, formats)
    assert fit is not None
    parts = {f"prefill of {n}": bound.prefill_ms(n) / fit.prefill_ms(n) for n in (512, 2048, 8192)}
    for batch, context in ((1, 512), (16, 4096), (64, 512), (64, 4096)):
        parts[f"step {batch} x {context}"] = bound.step_ms(batch, context) / fit.step_ms(batch, context)
    furthest = min(parts, key=parts.__getitem__)
    place = f"{cell.model} {cell.weights} {cell.gpu} tp{cell.tp}, {furthest}"
    if parts[furthest] < 0.3:
        with capsys.disabled():
            print(f"\n{place}: {parts[furthest]:.2f} of the roofline")  # noqa: T201
    assert all(0.1 < part < 1.25 for part in parts.values()), parts


@given(a=st.floats(0, 50), b=st.floats(0.001, 1), c=st.floats(0, 1e-4))
def test_a_curve_is_found_again(a, b, c):
    steps = [(n, k, a + b * n + c * n * k) for n in (1, 16, 64, 256) for k in (512.0, 4096.0)]
    found = fit_step(steps)
    assert found.worst < 1e-6
    assert all(term >= 0 for term in found.terms)
    prompts = [(n, a + b * n + c * n * n) for n in (512, 2048, 8192)]
    assert fit_prefill(prompts).worst < 1e-6


FAKE = """
    def cli_estimate(*, backend_name, mode, isl, batch_size, model_path, system_name, **rest):
        print("noise on stdout")
        if system_name == "l40s":
            raise ValueError("no data")
        bend = 40 if system_name == "b200_sxm" and batch_size > 1 else 0
        class Result:
            ttft, tpot = 3 + 0.05 * isl, bend + 8 + 0.1 * batch_size + 1e-5 * batch_size * isl
        return Result
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Stand in for an environment that has aiconfigurator."""
    package = tmp_path / "aiconfigurator" / "cli"
    package.mkdir(parents=True)
    (package / "api.py").write_text(textwrap.dedent(FAKE))
    python = tmp_path / "python"
    # It is started isolated, which would not see a package by its path.
    python.write_text(
        f'#!/bin/sh\nshift\nPYTHONSAFEPATH=1 PYTHONPATH={tmp_path} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv(PYTHON, str(python))


def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text((FOLDER / "llama-3.1-8b.json").read_text())
    return path


def test_the_library_is_asked_in_a_process_of_its_own(tmp_path, library):
    fit = silicon_fit(config(tmp_path), "h200", ONE_RANK, FP8, has_experts=False)
    assert fit.prefill_ms(1000) == pytest.approx(53)
    assert fit.step_ms(32, 2000) == pytest.approx(8 + 3.2 + 0.64)


def test_what_the_library_does_not_have_is_said(tmp_path, library):
    with pytest.raises(InputError, match="no data"):
        silicon_fit(config(tmp_path), "l40s", ONE_RANK, FP8, has_experts=False)
    with pytest.raises(InputError, match="no curve"):
        silicon_fit(config(tmp_path), "b200", ONE_RANK, FP8, has_experts=False)
    with pytest.raises(InputError, match="no timings of fp8 on l4"):
        silicon_fit(config(tmp_path), "l4", ONE_RANK, FP8, has_experts=False)


@pytest.mark.parametrize("python", [None, "/nonexistent/python", "/bin/true"])
def test_without_the_library_the_way_to_it_is_said(tmp_path, monkeypatch, python):
    monkeypatch.delenv(PYTHON, raising=False)
    if python:
        monkeypatch.setenv(PYTHON, python)
    with pytest.raises(EnvironmentLacks):
        silicon_fit(config(tmp_path), "h200", ONE_RANK, FP8, has_experts=False)


@pytest.mark.skipif(PYTHON not in os.environ, reason="aiconfigurator is not installed (make silicon-env)")
def test_the_real_library_answers(tmp_path):
    fit = silicon_fit(config(tmp_path), "h200", ONE_RANK, FP8, has_experts=False)
    assert 3 < fit.step_ms(1, 1000) < 20
    assert json.dumps(fit.prefill)
