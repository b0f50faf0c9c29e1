"""Format x back end x GPU: verdicts before any work, each with its reason and what comes nearest."""

from __future__ import annotations

import pytest

from trtkit.catalog.gpus import GPUS
from trtkit.catalog.support import KV_SUPPORT, UNWRITTEN, WEIGHT_SUPPORT, Support
from trtkit.catalog.trtllm import FLAGS, IMAGES, LINES, NEWEST, PROFILES
from trtkit.contract.formats import BackendName, KvCacheFormat, WeightFormat
from trtkit.plan.support import kv_verdict, table, weights_verdict

W, U, R = Support.WORKS, Support.UNCERTAIN, Support.REFUSED
SMS = (80, 86, 89, 90, 100, 103, 120)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", (W, W, W, W, W, W, W)),
        ("int8-wo", (W, W, W, W, R, R, U)),
        ("int8-sq", (W, W, W, W, R, R, U)),
        ("int4-awq", (W, W, W, W, R, R, R)),
        ("int4-gptq", (W, W, W, W, R, R, R)),
        ("w4a8-awq", (R, R, W, W, R, R, U)),
        ("fp8", (R, R, W, W, W, W, W)),
        ("fp8-rowwise", (R, R, W, W, R, R, U)),
        ("nvfp4", (R, R, R, R, W, W, W)),
        ("int4-wo", (W, W, W, W, R, R, U)),
    ],
)
def test_engines_run_what_the_builder_lets_through(name, expected):
    assert tuple(weights_verdict("tensorrt", name, sm, "1.2").support for sm in SMS) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("int8", (W, W, W, W, R, R, U)), ("fp8", (R, R, W, W, W, W, W))]
)
def test_engines_store_the_kv_cache_as_the_builder_lets_them(name, expected):
    assert tuple(kv_verdict("tensorrt", name, sm, "1.2").support for sm in SMS) == expected


@pytest.mark.parametrize(
    ("backend", "name", "sm", "nearest"),
    [
        ("tensorrt", "fp8", 80, "int8-sq"),
        ("tensorrt", "int8-sq", 100, "fp8"),
        ("tensorrt", "int4-awq", 120, "fp8"),
        ("llmapi", "int8-sq", 90, "fp8"),
        ("llmapi", "int8-sq", 80, "int4-awq"),
        ("rtx", "fp8", 86, "int8-sq"),
        ("edgellm", "fp8", 86, "int4-awq"),
    ],
)
def test_a_refusal_says_why_and_what_comes_nearest(backend, name, sm, nearest):
    verdict = weights_verdict(backend, name, sm, NEWEST)
    assert (verdict.support, verdict.nearest) == (R, nearest)
    assert verdict.reason


@pytest.mark.parametrize("sm", [90, 100])
def test_a_gpu_that_tensorrt_for_rtx_does_not_know_gets_a_graph_and_a_warning(sm):
    verdict = weights_verdict("rtx", "int8-sq", sm, NEWEST)
    assert verdict.support is U
    assert "no engine" in verdict.reason


def test_a_family_without_the_layers_refuses_them_and_never_proposes_them():
    verdict = weights_verdict("tensorrt", "int8-sq", 80, NEWEST, "MixtralForCausalLM")
    assert verdict.support is R
    assert "MixtralForCausalLM" in verdict.reason
    assert verdict.nearest == "int8-wo"


def test_an_early_line_is_not_known_to_run_on_a_gpu_that_came_later():
    assert weights_verdict("tensorrt", "fp8", 120, "0.17").support is U
    assert weights_verdict("tensorrt", "fp8", 120, NEWEST).support is W


def test_formats_that_are_only_judged_are_in_every_table():
    for name in UNWRITTEN:
        for backend in WEIGHT_SUPPORT:
            verdict = weights_verdict(backend, name, 80, NEWEST)
            assert "nothing is known" not in verdict.reason
        assert weights_verdict("tensorrt", name, 120, NEWEST).nearest not in UNWRITTEN


@pytest.mark.parametrize(("rows", "formats"), [(WEIGHT_SUPPORT, WeightFormat), (KV_SUPPORT, KvCacheFormat)])
def test_the_table_is_complete_and_every_doubt_has_a_reason(rows, formats):
    backends = {backend.value for backend in BackendName} - {"cpu", "onnx"}
    found = {row[:2] for row in table(rows, SMS, NEWEST)}
    assert found >= {(backend, name.value) for backend in backends for name in formats}
    assert all(row.reason for known in rows.values() for row in known if row.support is not W)


def test_gpus_have_what_their_generation_has():
    assert len(GPUS) >= 18
    for gpu in GPUS.values():
        assert (gpu.fp8_tflops is not None) == (gpu.sm >= 89)
        assert 20_000 < gpu.memory_mib < 300_000
        assert gpu.source
        assert gpu.read_on


def test_every_image_of_a_line_has_a_release_of_it_or_none_that_is_sure():
    tags = [(line, tag) for line, profile in PROFILES.items() for tag in profile.images]
    assert [tag for _, tag in tags] == list(IMAGES)
    assert all((IMAGES[tag].release or line).startswith(line) for line, tag in tags)
    assert [tag for tag, image in IMAGES.items() if image.release is None] == ["25.01", "25.05"]


def test_flags_belong_to_known_lines_and_defaults_to_their_choices():
    assert tuple(PROFILES) == LINES
    assert all(getattr(row, name) for row in PROFILES.values() for name in row.uncertain)
    for flag in FLAGS.values():
        assert flag.in_line(flag.since)
        assert flag.in_line(flag.until)
        assert not flag.choices or flag.default is None or flag.default in flag.choices
    assert not FLAGS["auto_parallel"].in_line("1.0")
    assert not FLAGS["norm_quant_fusion"].in_line("0.17")
