"""Quantized checkpoints of every format: the same numbers as their definition, by the kernels that it asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from tests.engine_cpu.conftest import tiny_plan, write_checkpoint
from tests.engine_cpu.formats import QUANTIZERS, float8, integers, quantized
from tests.engine_cpu.reference import EXACT, TOKENS, Reference, Session
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.engine.cpu.compile import compile_engine
from trtkit.engine.cpu.decoder import QUANT_ALGOS
from trtkit.engine.cpu.linear import FORMS
from trtkit.engine.cpu.rounding import e4m3, int8
from trtkit.errors import StageError

RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 400, size).tolist() for size in (5, 31, 32, 33, 64, 100, 150, 190)]
QKV, PROJ, LAYER = (
    "transformer.layers.0.attention.qkv.",
    "transformer.layers.1.mlp.proj.",
    "transformer.layers.0.",
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., TrtllmCheckpoint]:
    def make(
        name: str, kv_cache: str | None = None, edit: Any = lambda _: None, **changes: Any
    ) -> TrtllmCheckpoint:
        config, tensors = quantized(name, kv_cache)
        config["quantization"] |= changes
        edit(tensors)
        return TrtllmCheckpoint.open(write_checkpoint(tmp_path / "checkpoint", config, tensors))

    return make


@pytest.mark.parametrize("name", QUANTIZERS)
def test_checkpoints_of_these_tests_are_what_trtkit_verifies(write: Any, name: str) -> None:
    assert verify(write(name, "INT8").folder) == []


def test_every_algorithm_that_is_let_in_has_its_layers() -> None:
    assert set(QUANT_ALGOS) == set(FORMS)


@pytest.mark.parametrize("kv_cache", [None, "INT8", "FP8"])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_logits_agree_with_the_format(write: Any, name: str, kv_cache: str | None) -> None:
    """But for a value in the middle of two steps, which float32 may round to the other side than float64."""
    opened = write(name, kv_cache)
    reference, session, errors = Reference(opened), Session(opened), []
    for tokens in TOKENS.reshape(5, 3):
        expected = reference.logits(tokens)
        errors.append(np.abs(session.restarted().feed(tokens[None]) - expected).max() / expected.std())
    assert sorted(errors)[3] < 1e-4
    assert max(errors) < 0.2


KERNELS = {
    "sq": Counter({"brgemm_avx512_i8 i8": 10, "gemm_mlas_f32 f32": 1}),
    "fp8": Counter({"f32": 11}),
    "awq": Counter({"brgemm_avx512_f32 u4": 10, "gemm_mlas_f32 f32": 1}),
}
"""Of five layers in each of two decoder layers, and of the head; of float32 kernels there are two."""


@pytest.mark.skipif(
    "avx512_vnni" not in Path("/proc/cpuinfo").read_text(), reason="its kernels have other names"
)
@pytest.mark.parametrize("name", QUANTIZERS)
def test_products_run_in_the_type_of_the_format(write: Any, name: str) -> None:
    session, found = Session(write(name)), Counter[str]()
    session.feed(TOKENS)  # kernels are chosen when the shape is known
    for node in session.compiled.get_runtime_model().get_ordered_ops():
        info = {key: value.astype(str) for key, value in node.get_rt_info().items()}
        if info["layerType"] == "FullyConnected":
            kernel = "" if name.startswith("fp8") else info["primitiveType"] + " "
            found[kernel + info["runtimePrecision"]] += 1
    assert found == KERNELS[name.split("-", maxsplit=1)[0]]


def rounded(values: np.ndarray, rounding: Callable[[Any], Any]) -> np.ndarray:
    parameter = op.parameter([-1], ov.Type.f32)
    model = ov.Model([op.result(rounding(parameter))], [parameter], "rounding")
    return ov.Core().compile_model(model, "CPU", EXACT)(values.astype(np.float32))[0]


def test_e4m3_is_exact_at_every_value_and_between_any_two() -> None:
    values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    edges = np.concatenate([values, middles, [464, 465, 1e9, -1e9, 2.0**-140]]).astype(np.float32)
    spread = RNG.standard_normal(100_000) * np.exp(RNG.uniform(-9, 6, 100_000))
    inputs = np.concatenate(
        [edges, np.nextafter(edges, np.float32(1e9)), np.nextafter(edges, np.float32(-1e9)), spread]
    )
    inputs = inputs.astype(np.float32)
    np.testing.assert_array_equal(rounded(inputs, e4m3), float8(inputs).astype(np.float32))


def test_int8_is_exact_up_to_the_middle_of_two_steps() -> None:
    halves = np.arange(-131, 131, 0.5)
    inputs = np.concatenate([halves, halves + 1e-3, halves - 1e-3, RNG.uniform(-140, 140, 10_000)])
    np.testing.assert_array_equal(rounded(inputs, int8), integers(inputs.astype(np.float32)))


@pytest.mark.parametrize("name", ["sq-per-channel-per-token", "sq-qdq", "fp8-rowwise", "awq-zero"])
def test_a_token_of_zeros_stays_zeros(write: Any, name: str) -> None:
    def silence(tensors: dict[str, np.ndarray]) -> None:
        tensors[LAYER + "input_layernorm.weight"] *= 0
        tensors[LAYER + "post_layernorm.weight"] *= 0

    opened = write(name, edit=silence)
    assert np.isfinite(Session(opened).feed(TOKENS)).all()


@pytest.mark.parametrize("kv_cache", ["INT8", "FP8"])
def test_pages_hold_the_values_of_the_format(write: Any, serve: Any, tmp_path: Path, kv_cache: str) -> None:
    """The prompt covers several blocks; log-probabilities come from the pool, the reference keeps float64."""
    opened, prompt = write("awq", kv_cache), PROMPTS[5]
    (tmp_path / "engine").mkdir()
    compile_engine(opened.folder, tmp_path / "engine", tiny_plan())
    reply = serve(tmp_path / "engine").ask(prompt, 6, return_log_probs=True)
    logits = Reference(opened).logits(np.array(prompt + reply.tokens))[len(prompt) - 1 : -1]
    log_probs = logits - np.log(np.exp(logits - logits.max()).sum(-1, keepdims=True)) - logits.max()
    got = [value for chunk in reply.chunks for value in chunk.log_probs]
    assert np.median(np.abs(got - log_probs[np.arange(6), reply.tokens])) < 1e-4


@pytest.mark.parametrize("name", ["sq-per-channel-per-token", "sq-qdq", "fp8", "fp8-rowwise", "awq"])
def test_greedy_text_is_the_same_whoever_else_is_served(
    write: Any, serve: Any, tmp_path: Path, name: str
) -> None:
    (tmp_path / "engine").mkdir()
    compile_engine(write(name, "FP8").folder, tmp_path / "engine", tiny_plan())
    client = serve(tmp_path / "engine")
    alone = [client.ask(prompt).tokens for prompt in PROMPTS]
    assert [reply.wait().tokens for reply in [client.start(prompt) for prompt in PROMPTS]] == alone


def drop(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.pop(name)


def fill(name: str, value: float) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors[name].fill(value)


def add(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({name: np.ones(16)})


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("sq-qdq", fill(QKV + "prequant_scaling_factor", 0), "prequant_scaling_factor holds values"),
        ("sq-qdq", fill(QKV + "weights_scaling_factor", np.nan), "weights_scaling_factor holds values"),
        ("sq-per-channel", drop(LAYER + "mlp.quantization_scaling_factor"), "no tensor .*mlp.quantization_scaling"),
        ("sq-per-token", drop(PROJ + "smoother"), "no tensor .*proj.smoother"),
        ("fp8", fill(PROJ + "activation_scaling_factor", np.inf), "activation_scaling_factor holds values"),
        ("fp8-rowwise", drop(LAYER + "attention.clamp_val"), "no tensor .*attention.clamp_val"),
        ("awq-zero", drop(QKV + "zero"), "no tensor .*qkv.zero"),
        ("awq", fill(QKV + "weights_scaling_factor", -1), "weights_scaling_factor holds values"),
        ("sq-per-token", add(LAYER + "attention.q_layernorm.weight"), "PER_TOKEN_PLUGIN needs .*q_layernorm"),
        ("fp8-rowwise", drop(LAYER + "post_layernorm.weight"), "FP8_PER_CHANNEL_PER_TOKEN needs"),
    ],
)  # fmt: skip
def test_what_a_format_cannot_mean_is_refused_by_name(write: Any, name: str, edit: Any, said: str) -> None:
    with pytest.raises(StageError, match=said) as caught:
        Session(write(name, edit=edit))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("fp8-rowwise", {"use_meta_recipe": True}, "use_meta_recipe"),
        ("awq", {"group_size": 48}, "group_size 48"),
        ("awq", {"group_size": 16}, "weights_scaling_factor has 256 elements where 512 belong"),
        ("fp8", {"quant_algo": "W8A16"}, "weight is float8_e4m3fn"),
        ("fp8", {"quant_algo": None}, "weight is float8_e4m3fn"),
        ("awq", {"kv_cache_quant_algo": "INT8"}, "kv_cache_scaling_factor"),
        ("fp8-rowwise", {"clamp_val": None}, r"uses .*clamp_val and \d more"),
        ("awq", {"pre_quant_scale": False}, r"uses .*prequant_scaling_factor and 9 more"),
        ("awq-zero", {"has_zero_point": False}, r"uses .*zero and 9 more"),
    ],
)
def test_a_block_that_contradicts_the_tensors_is_refused(
    write: Any, name: str, changes: Any, said: str
) -> None:
    with pytest.raises(StageError, match=said):
        Session(write(name, **changes))
