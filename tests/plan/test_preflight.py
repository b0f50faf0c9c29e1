"""Every check fires for what it is about, with its key and a fix, and for nothing that is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.published import published
from trtkit.catalog.model import Kept
from trtkit.catalog.parallel import Parallelism
from trtkit.errors import ContractError, Severity
from trtkit.plan import Machine, make_plan
from trtkit.plan.check import Check
from trtkit.plan.checks import CHECKS
from trtkit.plan.memory import slot_tokens
from trtkit.plan.preflight import GPU_CHECKS
from trtkit.plan.preflight.ranks import untiled
from trtkit.plan.preflight.source import dtype_has_kernel
from trtkit.plan.resolve import outline

MACHINE = Machine(cores=2, memory_bytes=None)
BY_NAME = {check.name: check for check in (*CHECKS, *GPU_CHECKS)}
FLAGS = "engine.build_flags"
ENGINE = {"backend": "tensorrt", "gpu": "h100-sxm"}


def case(check, key, model="llama-3.1-8b", weights="none", kv_cache="auto", **sections):
    """Name a check and the contract that it is for: keys of ``engine``, or whole sections."""
    engine = ENGINE | {
        name: value for name, value in sections.items() if name not in ("classes", "model_section")
    }
    engine["kv_cache"] = engine.pop("pool", {})
    raw = {"engine": engine, "quantization": {"weights": weights, "kv_cache": kv_cache}}
    if "calibration" in engine:
        raw["quantization"]["calibration"] = engine.pop("calibration")
    raw |= {"classes": sections["classes"]} if "classes" in sections else {}
    raw |= {"model": sections["model_section"]} if "model_section" in sections else {}
    return pytest.param(check, key, model, raw, id=f"{check}-{key.rpartition('.')[2]}")


EAGLE = {"mode": "eagle", "checkpoint": "heads", "max_draft_tokens": 63}
CASES = [
    case("line_has_architecture", "engine.trtllm", "qwen3-8b", trtllm="0.21"),
    case("dtype_has_kernel", "model.dtype", model_section={"source": "x", "dtype": "float32"}),
    case("window_is_set_at_run_time", "model.source", "gemma-2-9b"),
    case("formats_run_on_gpu", "quantization.weights", weights="fp8", gpu="a100-80"),
    case("formats_run_on_gpu", "quantization.kv_cache", kv_cache="int8", gpu="b200"),
    case("formats_are_proven", "quantization.weights", weights="int8-sq", gpu="rtx-5090"),
    case("formats_run_on_gpu", "quantization.weights", "qwen3-8b", weights="int8-sq"),
    case("ranges_have_samples", "quantization.calibration.samples", weights="fp8", calibration={"samples": 64}),
    case("fp8_kv_suits_model", "quantization.kv_cache", "qwen2.5-7b", weights="fp8", kv_cache="fp8"),
    case("products_keep_pace_with_memory", "quantization.weights", weights="int8-wo"),
    case("layers_fill_tiles", "engine.tensor_parallel", "llama-2-7b", weights="int4-awq", tensor_parallel=4),
    case("fp8_layers_are_aligned", "engine.tensor_parallel", "llama-2-7b", weights="fp8", tensor_parallel=32),
    case("ranks_fit_a_node", "engine.tensor_parallel", "llama-3.3-70b", tensor_parallel=16),
    case("vllm_is_on_one_machine", "engine.tensor_parallel", "llama-3.3-70b", backend="vllm", tensor_parallel=16),
    case("kv_heads_are_not_repeated", "engine.tensor_parallel", "llama-3.3-70b", tensor_parallel=16),
    case("prompt_fits_step", "engine.limits.max_num_tokens", chunked_context=False,
         limits={"max_input_len": 4096, "max_num_tokens": 2048}),
    case("pool_leaves_something", "engine.kv_cache.memory_fraction", pool={"memory_fraction": 1}),
    case("groups_fill_rows", "quantization.group_size", "llama-2-7b", weights="int4-awq", tensor_parallel=4,
         backend="llmapi"),
    case("step_holds_beams", "engine.limits.max_num_tokens",
         limits={"max_beam_width": 8, "max_batch_size": 256, "max_num_tokens": 1024}),
    case("step_is_whole_blocks", "engine.limits.max_num_tokens", limits={"max_num_tokens": 1000}),
    case("step_stays_within_tensors", "engine.limits.max_num_tokens", limits={"max_num_tokens": 20000}),
    case("logits_are_small", "engine.limits.max_batch_size",
         limits={"max_beam_width": 8, "max_batch_size": 2048, "max_num_tokens": 16384}),
    case("reuse_and_chunks_work", "engine.kv_cache.enable_block_reuse", kv_cache="int8"),
    case("reuse_and_chunks_work", "engine.chunked_context", weights="int4-awq", kv_cache="fp8"),
    case("pool_holds_batch", "engine.limits.max_batch_size", gpu="l4"),
    case("flags_are_for_engines", FLAGS, backend="llmapi", build_flags={"workers": 1}),
    case("flags_are_known", f"{FLAGS}.gem_plugin", build_flags={"gem_plugin": "auto"}),
    case("flags_are_known", f"{FLAGS}.enable_xqa", build_flags={"enable_xqa": "enable"}),
    case("flags_are_known", f"{FLAGS}.max_batch_size", build_flags={"max_batch_size": 8}),
    case("flags_are_known", f"{FLAGS}.auto_parallel", build_flags={"auto_parallel": 2}),
    case("flags_are_known", f"{FLAGS}.norm_quant_fusion", build_flags={"norm_quant_fusion": "enable"}, trtllm="0.17"),
    case("flags_take_values", f"{FLAGS}.context_fmha", build_flags={"context_fmha": True}),
    case("flags_take_values", f"{FLAGS}.workers", build_flags={"workers": "two"}),
    case("flags_agree", f"{FLAGS}.gather_context_logits",
         build_flags={"gather_context_logits": True, "max_draft_len": 4}),
    case("flags_agree", f"{FLAGS}.gather_all_token_logits", build_flags={"gather_all_token_logits": True},
         speculation={"mode": "draft-target", "draft": "small.yaml", "max_draft_tokens": 5}),
    case("flags_agree", f"{FLAGS}.gpt_attention_plugin", build_flags={"gpt_attention_plugin": "disable"}),
    case("flags_agree", f"{FLAGS}.moe_plugin", "mixtral-8x7b", weights="int8-wo",
         build_flags={"moe_plugin": "disable"}),
    case("flags_agree", f"{FLAGS}.moe_plugin", "mixtral-8x7b", gpu="b200", build_flags={"moe_plugin": "disable"}),
    case("flags_agree", f"{FLAGS}.gemm_plugin", build_flags={"gemm_plugin": "nvfp4"}),
    case("flags_agree", f"{FLAGS}.low_latency_gemm_plugin", build_flags={"low_latency_gemm_plugin": "fp8"}),
    *(case("flags_take_values", f"{FLAGS}.{name}", build_flags={name: number})
      for name, number in (("workers", 0), ("workers", -3), ("opt_num_tokens", 0), ("max_encoder_input_len", 0),
                           ("max_prompt_embedding_table_size", -1))),
    case("plugins_have_the_model_s_type", f"{FLAGS}.gpt_attention_plugin",
         build_flags={"gpt_attention_plugin": "float32"}),
    case("flags_agree", f"{FLAGS}.opt_num_tokens", build_flags={"multiple_profiles": "enable", "opt_num_tokens": 64}),
    case("flags_agree", f"{FLAGS}.streamingllm", build_flags={"streamingllm": "enable"}),
    case("flags_agree", f"{FLAGS}.pp_reduce_scatter", build_flags={"pp_reduce_scatter": "enable"}),
    case("flags_agree", f"{FLAGS}.kv_cache_type", build_flags={"kv_cache_type": "disabled"}),
    case("flags_are_known", f"{FLAGS}.lora_plugin", build_flags={"lora_plugin": "auto"}),
    case("flags_are_known", f"{FLAGS}.max_draft_len", build_flags={"max_draft_len": 4}),
    case("flags_agree", f"{FLAGS}.fast_build", weights="int8-wo", build_flags={"fast_build": True}),
    case("flags_agree", f"{FLAGS}.gemm_swiglu_plugin", build_flags={"gemm_swiglu_plugin": "fp8"}),
    case("flags_agree", f"{FLAGS}.gemm_swiglu_plugin", trtllm="0.17", weights="fp8",
         build_flags={"gemm_swiglu_plugin": "fp8"}),
    case("flags_agree", f"{FLAGS}.user_buffer", build_flags={"user_buffer": "enable"}),
    case("flags_agree", f"{FLAGS}.strip_plan", build_flags={"fast_build": True, "strip_plan": True}),
    case("flags_agree", f"{FLAGS}.low_latency_gemm_plugin", gpu="b200", build_flags={"low_latency_gemm_plugin": "fp8"}),
    case("speculation_has_its_backend", "engine.speculation", backend="llmapi", speculation=EAGLE),
    case("drafts_have_no_pace", "engine.speculation", speculation=EAGLE),
    case("speculation_is_complete", "engine.speculation.checkpoint", speculation={"mode": "medusa"}),
    case("speculation_is_complete", "engine.speculation.max_draft_tokens", speculation={"mode": "eagle"}),
    case("speculation_is_complete", "engine.speculation.draft", speculation=EAGLE | {"draft": "small.yaml"}),
    case("speculation_is_complete", "engine.speculation.lookahead", speculation={"mode": "lookahead"}),
    case("speculation_is_complete", "engine.speculation.draft", speculation={"mode": "draft-target"}),
    case("speculation_is_complete", "engine.speculation.lookahead",
         speculation={"mode": "lookahead", "lookahead": {"window": 4, "ngram": 1, "verification": 4}}),
    case("speculation_fits_engine", "engine.limits.max_batch_size", speculation=EAGLE, limits={"max_batch_size": 513}),
    case("speculation_fits_engine", "engine.speculation.max_draft_tokens",
         speculation=EAGLE | {"max_draft_tokens": 300}),
    case("speculation_fits_engine", "quantization.kv_cache", speculation=EAGLE, kv_cache="int8"),
    case("speculation_fits_engine", "engine.speculation", speculation=EAGLE | {"mode": "medusa"},
         limits={"max_beam_width": 2}),
    case("speculation_fits_engine", "engine.limits.max_num_tokens", chunked_context=False,
         speculation={"mode": "draft-target", "draft": "small.yaml", "max_draft_tokens": 5},
         limits={"max_input_len": 1024, "max_seq_len": 4096, "max_num_tokens": 2048}),
    case("speculation_fits_engine", "engine.speculation", kv_cache="int8",
         speculation={"mode": "draft-target", "draft": "small.yaml", "max_draft_tokens": 5}),
    case("lora_has_its_backend", "engine.lora", backend="llmapi", lora={"modules": ["attn_q"]}),
    case("lora_has_modules", "engine.lora", lora={}),
    case("lora_suits_format", "engine.lora", weights="int8-sq", lora={"modules": ["attn_q"]}),
    case("lora_suits_format", "engine.lora", weights="fp8-rowwise", lora={"modules": ["attn_q"]}),
    case("lora_suits_flags", f"{FLAGS}.gemm_allreduce_plugin", lora={"modules": ["attn_q"]},
         build_flags={"gemm_allreduce_plugin": "bfloat16"}),
    case("lora_suits_flags", "engine.lora.modules", weights="int8-wo", lora={"modules": ["mlp_gate_up"]}),
    case("gemm_plugin_suits_format", f"{FLAGS}.gemm_plugin", weights="fp8", build_flags={"gemm_plugin": "auto"}),
    case("engine_can_be_served_as_built", f"{FLAGS}.strip_plan", build_flags={"strip_plan": True}),
    case("engine_can_be_served_as_built", f"{FLAGS}.weight_streaming",
         build_flags={"weight_streaming": True, "gemm_plugin": "auto"}),
    case("streamed_weights_have_their_flag", "engine.gpu_weights_fraction", gpu_weights_fraction=0.5),
    case("streamed_weights_have_their_flag", "engine.gpu_weights_fraction", backend="llmapi",
         gpu_weights_fraction=0.5),
    case("streamed_weights_are_slow", "engine.gpu_weights_fraction", build_flags={"weight_streaming": True}),
    case("streamed_weights_are_slow", "engine.gpu_weights_fraction", gpu_weights_fraction=0.5,
         build_flags={"weight_streaming": True}),
    case("timing_cache_has_a_place", f"{FLAGS}.output_timing_cache", build_flags={"output_timing_cache": "a.cache"}),
    case("workers_have_ranks", f"{FLAGS}.workers", build_flags={"workers": 4}),
    case("promises_can_be_kept", "classes.a.ttft_ms", classes={"a": {"priority": 1, "ttft_ms": 1}}),
    case("promises_can_be_kept", "classes.a.tpot_ms", classes={"a": {"priority": 1, "tpot_ms": 0.5}}),
    case("memory_holds_all", "engine.tensor_parallel", "llama-3.3-70b"),
    case("promises_can_be_kept", "classes.a.deadline_ms", classes={"a": {"priority": 1, "deadline_ms": 1}}),
    case("context_logits_are_small", f"{FLAGS}.gather_context_logits", gpu="l40s",
         build_flags={"gather_context_logits": True}),
    case("pool_holds_sequence", "engine.kv_cache.max_bytes", pool={"max_bytes": 1}),
    case("pool_holds_sequence", "engine.kv_cache.max_tokens", pool={"max_tokens": 64}),
    case("pool_holds_sequence", "engine.kv_cache.memory_fraction", pool={"memory_fraction": 0.0001}),
    case("pool_holds_sequence", "engine.limits.max_seq_len", gpu="l4", limits={"max_seq_len": 131072}),
    case("sequence_fits_model", "engine.limits.max_seq_len", "llama-2-7b", limits={"max_seq_len": 5000}),
    case("formats_run_on_gpu", "quantization.weights", backend="llmapi", weights="w4a8-awq"),
    case("formats_run_on_gpu", "quantization.weights", backend="vllm", weights="int8-sq"),
    case("formats_can_be_exported", "quantization.kv_cache", backend="llmapi", kv_cache="fp8"),
    case("beams_have_a_backend", "engine.limits.max_beam_width", backend="llmapi", limits={"max_beam_width": 2}),
    case("llmapi_has_block_size", "engine.kv_cache.tokens_per_block", backend="llmapi", trtllm="1.1",
         pool={"tokens_per_block": 64}),
    case("vllm_sizes_its_pool", "engine.kv_cache.max_tokens", backend="vllm", pool={"max_tokens": 4096}),
    case("vllm_sizes_its_pool", "engine.moe_expert_parallel", "mixtral-8x7b", backend="vllm",
         tensor_parallel=2, moe_expert_parallel=2),
    case("edgellm_takes_settings", "engine.kv_cache.enable_block_reuse", backend="edgellm", gpu="rtx-5090",
         pool={"enable_block_reuse": False}),
    case("edgellm_takes_settings", "engine.chunked_context", backend="edgellm", gpu="rtx-5090",
         chunked_context=False),
    case("edgellm_takes_model", "model.source", "mixtral-8x7b", backend="edgellm", gpu="rtx-5090"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "model", "raw"), CASES)
def test_a_check_finds_what_it_is_about(contract_with, name, key, model, raw):
    contract, config = contract_with(**raw), published(model)
    found = BY_NAME[name](contract, config, outline(contract, config, MACHINE))
    assert key in [problem.key for problem in found]
    assert all(problem.hint and problem.severity is BY_NAME[name].severity for problem in found)


def test_a_sequence_has_to_fit_the_part_of_each_proxy(contract_with):
    model, engine = published("llama-3.1-8b"), ENGINE | {"gpu": "l4", "limits": {"max_seq_len": 8192}}
    contract = contract_with(engine=engine, admission={"proxies": 1000})
    (problem,) = BY_NAME["pool_holds_sequence"](contract, model, outline(contract, model, MACHINE))
    assert problem.key == "admission.proxies"
    most = int(problem.hint.rpartition(" ")[2])
    for proxies, found in ((most, 0), (most + 1, 1)):
        contract = contract_with(engine=engine, admission={"proxies": proxies})
        assert (
            len(BY_NAME["pool_holds_sequence"](contract, model, outline(contract, model, MACHINE))) == found
        )


def test_a_source_that_is_quantized_is_no_baseline(contract_with):
    kept = Kept("AutoAWQ", ("int4-awq",), "auto", 128, has_zero_point=False, plain=frozenset())
    contract = contract_with(quantization={"weights": "int4-awq", "gate": {}})
    model = replace(published("llama-3.1-8b"), kept=kept)
    (problem,) = BY_NAME["gate_has_baseline"](contract, model, outline(contract, model, MACHINE))
    assert problem.key == "quantization.gate"
    assert "AutoAWQ" in problem.message


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("head_size_has_kernel", {"head_size": 100}, "model.source"),
        ("head_size_is_common", {"head_size": 88}, "model.source"),
    ],
)
def test_heads_need_kernels(contract_with, name, changes, key):
    model, contract = replace(published("llama-3.1-8b"), **changes), contract_with(engine=ENGINE)
    assert [each.key for each in BY_NAME[name](contract, model, outline(contract, model, MACHINE))] == [key]


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({"weights": "int4-awq", "group_size": 256}, "group_size_has_kernel"),
        ({"weights": "w4a8-awq", "group_size": 64}, "group_size_has_kernel"),
        (
            {"weights": "int8-sq", "fallback": ["w4a8-awq"], "gate": {}, "group_size": 64},
            "group_size_has_kernel",
        ),
        ({"weights": "fp8", "group_size": 64}, "settings_have_a_user"),
        ({"weights": "fp8", "smoothquant": "per-token"}, "settings_have_a_user"),
        ({"weights": "fp8-rowwise", "fallback": ["fp8"], "gate": {}, "alpha": 0.4}, "settings_have_a_user"),
        ({"kv_cache": "fp8", "kv_scale": "kv"}, "settings_have_a_user"),
        ({"weights": "int8-wo", "fallback": ["fp8"], "gate": {}}, "fallbacks_run_on_gpu"),
    ],
)
def test_formats_are_checked_with_all_their_keys(contract_with, quantization, name):
    contract = contract_with(engine=ENGINE | {"gpu": "a100-80"}, quantization=quantization)
    model = published("llama-3.1-8b")
    assert BY_NAME[name](contract, model, outline(contract, model, MACHINE))


@pytest.mark.parametrize(
    ("quantization", "key"),
    [
        ({"weights": "fp8", "kv_cache": "fp8", "fallback": ["none"], "gate": {}}, "fallback"),
        ({"weights": "fp8", "overrides": {"*.mlp.proj": "int4-awq"}}, "overrides"),
        ({"weights": "fp8", "overrides": {"*.mlp.proj": "none"}, "kv_cache": "fp8"}, None),
    ],
)
def test_a_folder_has_one_format_and_its_cache_goes_with_it(contract_with, quantization, key):
    contract = contract_with(engine=ENGINE | {"backend": "llmapi"}, quantization=quantization)
    model = published("llama-3.1-8b")
    found = BY_NAME["formats_can_be_exported"](contract, model, outline(contract, model, MACHINE))
    assert [each.key for each in found] == ([f"quantization.{key}"] if key else [])


def test_a_setting_belongs_to_any_format_of_the_chain(contract_with):
    quantization = {
        "weights": "int8-wo",
        "fallback": ["int8-sq"],
        "gate": {},
        "alpha": 0.4,
        "smoothquant": "per-token",
    }
    contract, model = contract_with(engine=ENGINE, quantization=quantization), published("llama-3.1-8b")
    assert BY_NAME["settings_have_a_user"](contract, model, outline(contract, model, MACHINE)) == []


def test_a_form_of_smoothquant_has_its_own_algorithm(contract_with):
    contract = contract_with(
        engine=ENGINE, quantization={"weights": "int8-sq", "smoothquant": "qdq", "alpha": 0.4}
    )
    quantization = outline(contract, published("llama-3.1-8b"), MACHINE).quantization
    assert (quantization.quant_algo, quantization.alpha) == ("W8A8_SQ_PER_CHANNEL", 0.4)


def test_every_gpu_check_has_a_case():
    named = {each.values[0] for each in CASES}
    named |= {"head_size_has_kernel", "head_size_is_common", "fallbacks_run_on_gpu"}
    assert {check.name for check in GPU_CHECKS} <= named


@pytest.mark.parametrize("check", GPU_CHECKS, ids=lambda check: check.name)
def test_nothing_is_found_where_all_is_right(contract_with, check: Check):
    contract = contract_with(
        engine=ENGINE | {"limits": {"max_batch_size": 64, "max_seq_len": 4096}},
        quantization={"weights": "fp8", "kv_cache": "fp8"},
    )
    model = published("llama-3.1-8b")
    assert check(contract, model, outline(contract, model, MACHINE)) == []


def test_all_problems_come_at_once_even_beside_a_division_that_cannot_be(contract_with):
    engine = ENGINE | {"gpu": "a100-80", "tensor_parallel": 3, "build_flags": {"nope": 1}}
    contract = contract_with(engine=engine, quantization={"weights": "fp8", "kv_cache": "fp8"})
    with pytest.raises(ContractError) as caught:
        make_plan(contract, published("llama-3.1-8b"), MACHINE)
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {
        "engine.tensor_parallel", "quantization.weights", "quantization.kv_cache", "engine.build_flags.nope",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        ({"backend": "tensorrt"}, "engine.gpu"),
        ({"backend": "edgellm", "gpu": "h100-sxm"}, "engine.gpu"),
        ({"backend": "tensorrt", "gpu": "h100"}, "engine.gpu"),
        ({"backend": "tensorrt", "gpu": "h200", "trtllm": "1.3"}, "engine.trtllm"),
        ({"backend": "llmapi", "gpu": "h200", "trtllm": "0.21"}, "engine.trtllm"),
        ({"backend": "rtx", "gpu": "rtx-5090", "trtllm": "1.2"}, "engine.trtllm"),
        ({"backend": "rtx", "gpu": "rtx-5090", "tensor_parallel": 2}, "engine.tensor_parallel"),
        ({"backend": "rtx", "gpu": "rtx-5090", "targets": [120, 77]}, "engine.targets"),
        ({"backend": "rtx", "gpu": "rtx-5090", "targets": [80, 89]}, "engine.targets"),
        ({"backend": "tensorrt", "gpu": "h200", "targets": [90]}, "engine.targets"),
        (
            {"backend": "rtx", "gpu": "rtx-5090", "limits": {"max_beam_width": 2}},
            "engine.limits.max_beam_width",
        ),
        ({"backend": "onnx", "gpu": "h200"}, "engine.gpu"),
        ({"backend": "tensorrt", "gpu": "h200", "threads": 4}, "engine.threads"),
        ({"backend": "cpu", "build_flags": {"workers": 1}}, "engine.build_flags"),
        ({"backend": "cpu", "trtllm": "1.2"}, "engine.trtllm"),
        ({"backend": "cpu", "chunked_context": False}, "engine.chunked_context"),
        ({"backend": "cpu", "limits": {"max_beam_width": 2}}, "engine.limits.max_beam_width"),
        ({"backend": "cpu", "kv_cache": {"max_bytes": 5}}, "engine.kv_cache.max_bytes"),
    ],
)
def test_a_target_that_cannot_be_is_refused_by_its_key(contract_with, engine, key):
    with pytest.raises(ContractError) as caught:
        make_plan(contract_with(engine=engine), published("llama-3.1-8b"), MACHINE)
    assert [problem.key for problem in caught.value.problems if problem.severity is Severity.ERROR] == [key]
    assert all(problem.hint for problem in caught.value.problems)


# Computed from the published shapes; heads and widths divide for all of 1, 2, 4 and 8 ranks unless noted.
@pytest.mark.parametrize(
    ("name", "tile", "fits"),
    [
        ("llama-2-7b", 64, (1, 2, 4)),
        ("llama-2-7b", 128, (1, 2)),
        ("llama-3.1-8b", 128, (1, 2, 4, 8)),
        ("llama-3.3-70b", 128, (1, 2, 4, 8)),
        ("llama-3.2-1b", 128, (1, 2, 4, 8)),
        ("qwen3-8b", 128, (1, 2, 4, 8)),
        ("qwen2.5-7b", 64, (1, 2, 4)),
        ("qwen2.5-7b", 128, (1, 2, 4)),
    ],
)
def test_layers_fill_tiles_at_the_sizes_that_are_known(name, tile, fits):
    model = published(name)
    sizes = [tp for tp in (1, 2, 4, 8) if model.num_heads % tp == 0]
    assert tuple(tp for tp in sizes if not untiled(model, Parallelism(tp), tile)) == fits


@pytest.mark.parametrize(("dtype", "refused"), [("bfloat16", True), ("float16", False), (None, False)])
def test_an_engine_for_turing_computes_in_float16(contract_with, dtype, refused):
    engine = {"backend": "rtx", "gpu": "rtx-5090", "targets": [75, 120]}
    model = {"source": "x"} | ({"dtype": dtype} if dtype else {})
    plan = outline(contract_with(engine=engine, model=model), published("llama-3.1-8b"), MACHINE)
    found = dtype_has_kernel(contract_with(engine=engine, model=model), published("llama-3.1-8b"), plan)
    assert [each.key for each in found] == (["model.dtype"] if refused else [])


@pytest.mark.parametrize(("weights", "refused"), [("none", False), ("int8-wo", True)])
def test_experts_have_a_graph_in_16_bits_only(contract_with, weights, refused):
    engine = {"backend": "rtx", "gpu": "b200", "limits": {"max_batch_size": 1, "max_seq_len": 2048}}
    contract = contract_with(engine=engine, quantization={"weights": weights})
    model = published("mixtral-8x7b")
    found = BY_NAME["experts_have_graph"](contract, model, outline(contract, model, MACHINE))
    assert [each.key for each in found] == (["quantization.weights"] if refused else [])


@pytest.mark.parametrize("engine", [{"backend": "onnx"}, {"backend": "rtx", "gpu": "l4"}])
def test_slots_that_nobody_counted_are_as_many_as_have_their_caches(contract_with, engine):
    model = published("llama-3.2-1b")
    plan = make_plan(contract_with(engine=engine), model, Machine(cores=2, memory_bytes=24 * 10**9))
    per_slot = slot_tokens(plan.limits)
    assert plan.memory.kv_tokens == plan.limits.max_batch_size * per_slot
    assert plan.zones.kv_tokens == plan.memory.kv_tokens
    memory = plan.memory
    used = memory.weights_bytes + memory.activation_bytes + memory.overhead_bytes + memory.kv_pool_bytes
    assert used <= (memory.available_bytes or 0)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"limits": {"max_batch_size": 4096, "max_seq_len": 8192}}, "engine.limits.max_batch_size"),
        ({"limits": {"max_batch_size": 8}, "kv_cache": {"max_tokens": 4096}}, "engine.kv_cache.max_tokens"),
    ],
)
def test_slots_without_their_caches_are_refused(contract_with, section, key):
    with pytest.raises(ContractError) as caught:
        make_plan(
            contract_with(engine={"backend": "onnx", **section}),
            published("llama-3.2-1b"),
            Machine(2, 24 * 10**9),
        )
    assert key in {problem.key for problem in caught.value.problems}
