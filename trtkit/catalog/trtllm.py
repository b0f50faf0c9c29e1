"""TensorRT-LLM's engine flow, release line by release line: what it needs and which flags ``trtllm-build`` takes.

Flags were read from ``tensorrt_llm/commands/build.py`` and ``plugin/plugin.py`` at 1.3.0rc3, 1.1 and 0.18dev; pins from
``requirements.txt`` and the Triton back end's Dockerfiles at the release tags; images from Triton's compatibility page
of August 2026. An unknown flag is an error of argparse, so what a line does not have is never passed to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

READ_ON = "2026-11-30"
LINES = ("0.17", "0.18", "0.19", "0.20", "0.21", "1.0", "1.1", "1.2")
"""Release lines that have the engine flow, oldest first; the one after them has none."""
NEWEST = LINES[-1]
LLMAPI_SINCE = "1.0"
"""First line whose LLM API runs checkpoints without an engine, by its PyTorch back end."""


@dataclass(frozen=True)
class Profile:
    """One release line."""

    line: str
    tensorrt: str
    cuda: str
    torch: str
    modelopt: str
    images: tuple[str, ...]
    """Tags YY.MM of ``nvcr.io/nvidia/tritonserver:YY.MM-trtllm-python-py3`` that carry it, oldest first."""
    transformers: str | None = None
    """The version that it pins; None where none is known."""
    uncertain: tuple[str, ...] = ()
    """Fields that no release file was seen to confirm."""


NUMPY, PYTHONS = "<2", ("3.10", "3.12")
"""What every line of the engine flow wants beside its own pins; a newer transformers breaks its converters."""

PROFILES: dict[str, Profile] = {
    row.line: row
    for row in (
        Profile("0.17", "10.8", "12.8.0", "2.6.0", "0.23", ("25.01", "25.02")),
        Profile("0.18", "10.9.0", "12.8.1", "2.7.0a", "0.25", ("25.03", "25.04"), uncertain=("torch",)),
        Profile("0.19", "10.9.0", "12.8.1", "2.7.0a", "0.27", ("25.05",), uncertain=("cuda", "torch")),
        Profile("0.20", "10.10", "12.9.0", "2.7.0", "0.29", ("25.06", "25.07")),
        Profile("0.21", "10.11", "12.9", "2.7.1", "0.31", ("25.08",)),
        Profile(
            "1.0",
            "10.11.0",
            "12.9",
            "2.7.1",
            "0.33",
            ("25.09", "25.10", "25.11"),
            transformers="4.53.1",
            uncertain=("tensorrt",),
        ),
        Profile(
            "1.1",
            "10.13.3",
            "13.0",
            "2.9.0",
            "0.37",
            ("25.12", "26.01", "26.02"),
            transformers="4.56.0",
            uncertain=("tensorrt",),
        ),
        Profile(
            "1.2",
            "10.14.1",
            "13.1",
            "2.9.1",
            "0.37",
            ("26.03", "26.04", "26.05", "26.06", "26.07"),
            transformers="4.57.3",
            uncertain=("tensorrt", "modelopt"),
        ),
    )
}


@dataclass(frozen=True)
class Image:
    """What is in one of NVIDIA's images, by Triton's compatibility page."""

    tag: str
    release: str | None
    """Exact version of TensorRT-LLM; None where sources disagree. An engine loads in the one that built it."""
    cuda: str
    tensorrt: str
    driver: str


_IN_IMAGES: tuple[tuple[tuple[str, ...], str | None, str, str, str], ...] = (
    (("25.01",), None, "12.8.0", "10.8.0", "570.86"),
    (("25.02",), "0.17.0.post1", "12.8.0", "10.8.0", "570.86"),
    (("25.03",), "0.18.0", "12.8.1", "10.9.0", "570.124"),
    (("25.04",), "0.18.2", "12.8.1", "10.9.0", "570.124"),
    (("25.05",), None, "12.8.1", "10.9.0", "570.124"),
    (("25.06", "25.07"), "0.20.0", "12.9.0", "10.10.0", "575.51"),
    (("25.08",), "0.21.0", "12.9.0", "10.11.0", "575.51"),
    (("25.09", "25.10"), "1.0.0", "12.9.1", "10.11.0", "575.57"),
    (("25.11",), "1.0.3.2510", "13.0.2", "10.13.3", "580.95"),
    (("25.12", "26.01", "26.02"), "1.1.0", "13.0.2", "10.13.3", "580.95"),
    (("26.03",), "1.2.0", "13.1.0", "10.14.1", "590.44"),
    (("26.04", "26.05", "26.06", "26.07"), "1.2.1", "13.1.0", "10.14.1", "590.44"),
)
IMAGES: dict[str, Image] = {
    tag: Image(tag, release, cuda, tensorrt, driver)
    for tags, release, cuda, tensorrt, driver in _IN_IMAGES
    for tag in tags
}
"""By tag YY.MM, oldest first."""


def image_reference(tag: str) -> str:
    """Return the name of NVIDIA's image of TensorRT-LLM with a tag YY.MM."""
    return f"nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"


SPECULATION_SINCE: Mapping[str, str] = {"lookahead_decoding": "0.19"}
"""Modes that Triton's back end of older lines has no settings for."""

ARCHITECTURES_SINCE: Mapping[str, str] = {"Qwen3ForCausalLM": "1.0", "Qwen3MoeForCausalLM": "1.0"}
"""Classes that older lines do not have; the others are in all of them."""

HEAD_SIZES = (32, 40, 48, 64, 72, 80, 96, 104, 112, 128, 160, 192, 256)
"""Head sizes with fused context attention, as far as known."""


@dataclass(frozen=True)
class Flag:
    """One option of ``trtllm-build``."""

    name: str
    default: Any
    choices: tuple[Any, ...] = ()
    """Values it takes; empty for any of the default's type."""
    kind: type = str
    """``list`` for one that takes several words."""
    since: str = LINES[0]
    until: str = NEWEST
    """First and last line that has it."""
    given_by: str = ""
    """Key of the contract that says it; then it is no free flag."""
    least: int = 0
    """Smallest number that makes sense, for flags that take one."""

    def in_line(self, line: str) -> bool:
        """Return whether the line's ``trtllm-build`` knows the flag."""
        return LINES.index(self.since) <= LINES.index(line) <= LINES.index(self.until)


_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
_SWITCH = ("enable", "disable")


def _switch(name: str, default: str, **rest: Any) -> Flag:
    return Flag(name, default, _SWITCH, **rest)


def _plugin(name: str, default: str, *more: str) -> Flag:
    return Flag(name, default, (*_DTYPES, *more))


def _given(name: str, default: Any, key: str, kind: type = int) -> Flag:
    return Flag(name, default, kind=kind, given_by=key)


def _set(name: str, **rest: Any) -> Flag:
    return Flag(name, False, (True, False), bool, **rest)


_SPECULATION = ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle")

_FLAGS = (
    _given("max_batch_size", 2048, "engine.limits.max_batch_size"),
    _given("max_input_len", 1024, "engine.limits.max_input_len"),
    _given("max_seq_len", None, "engine.limits.max_seq_len"),
    _given("max_num_tokens", 8192, "engine.limits.max_num_tokens"),
    _given("max_beam_width", 1, "engine.limits.max_beam_width"),
    _given("tokens_per_block", 32, "engine.kv_cache.tokens_per_block"),
    Flag("opt_num_tokens", None, kind=int, least=1),
    Flag("max_encoder_input_len", 1024, kind=int, least=1),
    Flag("max_prompt_embedding_table_size", 0, kind=int),
    Flag("kv_cache_type", "paged", ("paged", "continuous", "disabled")),
    Flag("profiling_verbosity", "layer_names_only", ("layer_names_only", "detailed", "none")),
    Flag("input_timing_cache", None),
    Flag("output_timing_cache", "model.cache"),
    Flag("logits_dtype", None, ("float16", "float32")),
    Flag("workers", 1, kind=int, least=1),
    Flag("log_level", "info", ("internal_error", "error", "warning", "info", "verbose", "debug")),
    Flag("visualize_network", None, since="0.18"),
    _given("lora_dir", None, "engine.lora.adapters", list),
    _given("lora_target_modules", None, "engine.lora.modules", list),
    _given("max_lora_rank", 64, "engine.lora.max_rank"),
    _given("max_draft_len", 0, "engine.speculation.max_draft_tokens"),
    Flag("speculative_decoding_mode", None, _SPECULATION, given_by="engine.speculation.mode"),
    Flag("auto_parallel", 1, kind=int, least=1, until="0.20"),
    Flag("gpus_per_node", 8, kind=int, least=1, until="0.20"),
    Flag("cluster_key", None, until="0.20"),
    _set("strip_plan"),
    _set("weight_sparsity"),
    _set("weight_streaming"),
    _set("fast_build"),
    _set("gather_context_logits"),
    _set("gather_generation_logits"),
    _set("gather_all_token_logits"),
    _set("enable_debug_output"),
    _set("monitor_memory"),
    _plugin("bert_attention_plugin", "auto"),
    _plugin("gpt_attention_plugin", "auto"),
    _plugin("gemm_plugin", "disable", "fp8", "nvfp4"),
    Flag("gemm_swiglu_plugin", "disable", ("fp8", "disable")),
    _plugin("fp8_rowwise_gemm_plugin", "disable"),
    Flag("lora_plugin", "disable", _DTYPES, given_by="engine.lora"),
    _switch("dora_plugin", "disable"),
    _plugin("moe_plugin", "auto"),
    _plugin("mamba_conv1d_plugin", "auto"),
    _plugin("nccl_plugin", "auto"),
    Flag("low_latency_gemm_plugin", "disable", ("fp8", "disable")),
    Flag("low_latency_gemm_swiglu_plugin", "disable", ("fp8", "disable")),
    Flag("gemm_allreduce_plugin", "disable", ("float16", "bfloat16", "disable"), since="0.18"),
    _switch("context_fmha", "enable"),
    _switch("bert_context_fmha_fp32_acc", "disable"),
    _switch("remove_input_padding", "enable"),
    _switch("use_paged_context_fmha", "enable"),
    _switch("use_fp8_context_fmha", "enable"),
    _switch("fuse_fp4_quant", "disable", since="0.18"),
    _switch("multiple_profiles", "disable"),
    _switch("paged_state", "enable"),
    _switch("streamingllm", "disable"),
    _switch("norm_quant_fusion", "disable", since="0.19"),
    _switch("reduce_fusion", "disable"),
    _switch("user_buffer", "disable"),
    _switch("use_fused_mlp", "enable", since="0.18"),
    _switch("pp_reduce_scatter", "disable"),
)

FLAGS: dict[str, Flag] = {flag.name: flag for flag in _FLAGS}


OLD_FLAGS: Mapping[str, str] = {
    "max_output_len": "engine.limits.max_seq_len: prompt and output together",
    "max_decoder_seq_len": "engine.limits.max_seq_len",
    "max_multimodal_len": "max_prompt_embedding_table_size",
    "paged_kv_cache": "kv_cache_type: paged",
    "enable_xqa": "nothing: the kernel is always used where it fits",
    "use_embedding_sharing": "nothing: equal tables are shared without being told",
    "builder_force_num_profiles": "the environment variable BUILDER_FORCE_NUM_PROFILES",
    "builder_opt": "nothing",
    "enable_chunked_context": "engine.chunked_context: it is a setting of the runtime",
}
"""What to write instead of flags that no supported line has any more."""
