"""Flags of ``trtllm-build``: known to the release line, of the right kind, and not against each other."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import PurePosixPath

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.trtllm import FLAGS, LINES, OLD_FLAGS, Flag
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses, warns
from trtkit.plan.gpu_memory import CONTEXT_LOGITS
from trtkit.plan.types import Plan, Target

_KEY = "engine.build_flags"
_WEIGHT_ONLY = ("int8-wo", "int4-awq", "int4-gptq", "w4a8-awq")
_NO_PLAIN_EXPERTS_SM = 100
_TYPED = ("gpt_attention_plugin", "gemm_plugin", "moe_plugin", "nccl_plugin")
_TYPES = ("float16", "bfloat16", "float32", "int32")
_SM100_OFF = (
    "gemm_swiglu_plugin",
    "fp8_rowwise_gemm_plugin",
    "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin",
    "bert_context_fmha_fp32_acc",
)


@refuses
def flags_are_for_engines(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """Only the engine flow has ``trtllm-build``; elsewhere its flags would have no effect."""
    backend = contract.engine.backend.value
    if contract.engine.build_flags and backend != "tensorrt":
        yield Problem(f"the {backend} back end has no trtllm-build", _KEY, "leave the key out")


@refuses
def flags_are_known(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """An unknown flag ends ``trtllm-build`` at once."""
    for name in contract.engine.build_flags:
        key = f"{_KEY}.{name}"
        if name in OLD_FLAGS:
            yield Problem(f"no supported line has {name}", key, f"write {OLD_FLAGS[name]}")
        elif name not in FLAGS:
            near = difflib.get_close_matches(name, FLAGS, n=1)
            hint = f"did you mean {near[0]}?" if near else "see trtllm-build --help of the target line"
            yield Problem(f"trtllm-build has no {name}", key, hint)
        elif FLAGS[name].given_by:
            yield Problem(f"{name} has a key of its own", key, f"write {FLAGS[name].given_by}")
        elif plan.target and plan.target.trtllm and not FLAGS[name].in_line(plan.target.trtllm):
            first, last = FLAGS[name].since, FLAGS[name].until
            message = f"trtllm-build of {plan.target.trtllm} has no {name}"
            yield Problem(message, key, f"lines {first} to {last} have it")


@refuses
def flags_take_values(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """A value that is none of the choices ends ``trtllm-build`` too."""
    for name, value in contract.engine.build_flags.items():
        flag = FLAGS.get(name)
        if flag is not None and not flag.given_by and not _takes(flag, value):
            number = f" of at least {flag.least}" if flag.kind is int else ""
            allowed = ", ".join(map(str, flag.choices)) or f"a value of type {flag.kind.__name__}{number}"
            yield Problem(f"{name} does not take {value!r}", f"{_KEY}.{name}", f"use {allowed}")


def _takes(flag: Flag, value: bool | int | str) -> bool:
    if flag.choices:
        return any(value is each or (type(value) is type(each) and value == each) for each in flag.choices)
    return type(value) is flag.kind and (not isinstance(value, int) or value >= flag.least)


@refuses
def flags_agree(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Pairs that the builder rejects, or asserts against, after the checkpoint was read."""
    if plan.target is None or contract.engine.backend.value != "tensorrt":
        return
    for key, message, hint in _contradictions(_Flags(plan.target), model, plan):
        yield Problem(message, f"{_KEY}.{key}", hint)


class _Flags:
    """The flags of a target, defaults included."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __getitem__(self, name: str) -> bool | int | str | None:
        value: bool | int | str | None = self.target.build_flags.get(name, FLAGS[name].default)
        return value

    def is_on(self, name: str) -> bool:
        return self[name] not in ("disable", False, None, 0)


def _contradictions(flags: _Flags, model: ModelConfig, plan: Plan) -> Iterator[tuple[str, str, str]]:
    for name in CONTEXT_LOGITS:
        if flags.is_on(name) and flags.is_on("max_draft_len"):
            yield name, "context logits and draft tokens exclude each other", "leave one out"
    if flags.is_on("multiple_profiles") and flags["opt_num_tokens"] is not None:
        yield "opt_num_tokens", "multiple_profiles chooses the optimum itself", "leave one of the two out"
    if flags.is_on("streamingllm"):
        early = LINES.index(flags.target.trtllm or LINES[-1]) < LINES.index("1.0")
        if not early or model.architecture != "LlamaForCausalLM":
            yield "streamingllm", "only lines before 1.0 have it, for Llama", "leave it out"
    if flags.is_on("pp_reduce_scatter") and model.architecture != "MixtralForCausalLM":
        yield "pp_reduce_scatter", f"{model.architecture} engines assert against it", "leave it out"
    is_fp8_llama = model.architecture == "LlamaForCausalLM" and plan.quantization.weights == "fp8"
    if flags.is_on("user_buffer") and not is_fp8_llama:
        message = (
            f"it is for FP8 layers of Llama, not for {plan.quantization.weights} of {model.architecture}"
        )
        yield "user_buffer", message, "leave it out"
    yield from _swiglu(flags, plan)
    yield from _plugins(flags, model, plan)
    if flags["kv_cache_type"] != "paged":
        yield "kv_cache_type", f"a {flags['kv_cache_type']} cache has no in-flight batching", "use paged"
    if flags.is_on("fast_build") and plan.quantization.weights == "int8-wo":
        yield "fast_build", "managed weights do not go with weight-only layers", "leave it out"
    if flags.is_on("fast_build") and flags.is_on("strip_plan"):
        message = "a fast build keeps its weights beside the engine, and trtllm-refit leaves them behind"
        yield "strip_plan", message, "leave one of the two out"


def _plugins(flags: _Flags, model: ModelConfig, plan: Plan) -> Iterator[tuple[str, str, str]]:
    weights, sm = plan.quantization.weights, flags.target.gpu.sm
    if not flags.is_on("gpt_attention_plugin"):
        message = "without the attention plugin there are no in-flight batching and no blocks of a KV cache"
        yield "gpt_attention_plugin", message, "leave it at auto"
    if model.moe is not None and not flags.is_on("moe_plugin"):
        if sm >= _NO_PLAIN_EXPERTS_SM:
            yield "moe_plugin", f"experts without the plugin do not run on SM {sm}", "leave it at auto"
        if weights in _WEIGHT_ONLY:
            yield "moe_plugin", f"experts without the plugin have no {weights} weights", "leave it at auto"
    for name in ("gemm_plugin", "low_latency_gemm_plugin"):
        if flags[name] in ("fp8", "nvfp4") and flags[name] != weights:
            yield name, f"{flags[name]} is for weights of that format, these are {weights}", "leave it out"


def _swiglu(flags: _Flags, plan: Plan) -> Iterator[tuple[str, str, str]]:
    sm = flags.target.gpu.sm
    if sm == 100:
        for name in _SM100_OFF:
            if flags.is_on(name):
                yield name, "the plugin is not implemented for SM 100", "leave it out"
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"):
        if flags.is_on(name) and sm != 100:
            line = flags.target.trtllm or LINES[-1]
            if not FLAGS["use_fused_mlp"].in_line(line):
                hint = f"leave it out, or set engine.trtllm to {FLAGS['use_fused_mlp'].since} or later"
                yield name, f"it needs use_fused_mlp, which trtkit does not switch on in {line}", hint
            elif flags["use_fused_mlp"] == "disable":
                yield name, "it needs use_fused_mlp", "leave use_fused_mlp at enable"
            if plan.quantization.weights != "fp8" or (name == "gemm_swiglu_plugin" and sm != 90):
                yield (
                    name,
                    f"it is for FP8 weights on SM 90, this is {plan.quantization.weights} on SM {sm}",
                    "leave it out",
                )


@warns
def plugins_have_the_model_s_type(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Plugins of another type than the checkpoint's were never seen to build; auto takes its type."""
    for name, value in contract.engine.build_flags.items():
        if name in _TYPED and value in _TYPES and value != plan.dtype:
            yield Problem(f"{name} {value} in a model of {plan.dtype}", f"{_KEY}.{name}", "use auto")


@warns
def gemm_plugin_suits_format(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """The plugin of 16-bit products gains nothing where all of them are FP8."""
    value = contract.engine.build_flags.get("gemm_plugin")
    if plan.quantization.weights == "fp8" and value not in (None, "disable", "fp8"):
        hint = "disable for large batches, fp8 for small ones"
        yield Problem(f"gemm_plugin {value} does nothing for FP8 weights", f"{_KEY}.gemm_plugin", hint)


@warns
def engine_can_be_served_as_built(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """Engines without weights, or with streamed ones, need a step more."""
    flags = contract.engine.build_flags
    if flags.get("strip_plan") is True:
        message = (
            "a stripped engine has no weights: the build puts them back with trtllm-refit, and keeps both"
        )
        yield Problem(
            message, f"{_KEY}.strip_plan", "leave it out unless engines are shipped without weights"
        )
    if flags.get("weight_streaming") is True and flags.get("gemm_plugin", "disable") != "disable":
        message = "streamed weights need products without the plugin"
        yield Problem(message, f"{_KEY}.weight_streaming", "set gemm_plugin to disable")


@refuses
def streamed_weights_have_their_flag(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """An engine that was not built for it keeps all its weights on the GPU, whatever the runtime is told."""
    backend, key = contract.engine.backend.value, "engine.gpu_weights_fraction"
    if contract.engine.gpu_weights_fraction is None:
        return
    if backend != "tensorrt":
        yield Problem(f"the {backend} back end streams no weights from the host", key, "leave the key out")
    elif contract.engine.build_flags.get("weight_streaming") is not True:
        message, hint = "the engine is not built to stream weights", f"set {_KEY}.weight_streaming to true"
        yield Problem(message, key, hint)


@warns
def streamed_weights_are_slow(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """The runtime streams nothing unless it is told to, and what it streams passes the bus in every step."""
    key = "engine.gpu_weights_fraction"
    if contract.engine.build_flags.get("weight_streaming") is not True:
        return
    if contract.engine.gpu_weights_fraction is None:
        hint = "give the share that stays on the GPU"
        yield Problem("all weights stay on the GPU: nothing is streamed", key, hint)
    else:
        hint = "measure with `trtkit bench` before promises are made"
        yield Problem("the foreseen speed knows nothing of weights that come from the host", key, hint)


@refuses
def timing_cache_has_a_place(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """The builder runs in a folder of its own that goes away, and a relative timing cache with it."""
    for name in ("input_timing_cache", "output_timing_cache"):
        value = contract.engine.build_flags.get(name)
        if isinstance(value, str) and not PurePosixPath(value).is_absolute():
            yield Problem(f"{name} {value!r} is relative", f"{_KEY}.{name}", "give an absolute path")


@warns
def workers_have_ranks(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """More workers than ranks are silently none."""
    workers, world = contract.engine.build_flags.get("workers"), plan.tensor_parallel * plan.pipeline_parallel
    if isinstance(workers, int) and workers > world:
        yield Problem(f"{workers} workers build {world} rank(s)", f"{_KEY}.workers", f"at most {world}")


FLAG_CHECKS = (
    flags_are_for_engines,
    flags_are_known,
    flags_take_values,
    flags_agree,
    plugins_have_the_model_s_type,
    gemm_plugin_suits_format,
    engine_can_be_served_as_built,
    streamed_weights_have_their_flag,
    streamed_weights_are_slow,
    timing_cache_has_a_place,
    workers_have_ranks,
)
