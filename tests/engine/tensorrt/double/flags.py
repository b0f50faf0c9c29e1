"""The options of ``trtllm-build``, release line by release line, as argparse takes them."""

import argparse

LINES = ["0.17", "0.18", "0.19", "0.20", "0.21", "1.0", "1.1", "1.2"]
DTYPES = ["auto", "float16", "float32", "bfloat16", "int32", "disable"]
SWITCH = ["enable", "disable"]
LORA_MODULES = [
    "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate",
    "cross_attn_qkv", "cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_dense", "moe_h_to_4h",
    "moe_4h_to_h", "moe_gate", "moe_router", "mlp_router", "mlp_gate_up",
]  # fmt: skip
MODES = {
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}

TEXTS = {
    "checkpoint_dir": None, "model_config": None, "build_config": None, "model_cls_file": None,
    "model_cls_name": None, "output_dir": "engine_outputs", "input_timing_cache": None,
    "output_timing_cache": "model.cache",
}  # fmt: skip
NUMBERS = {
    "max_batch_size": 2048, "max_input_len": 1024, "max_beam_width": 1, "max_num_tokens": 8192,
    "opt_num_tokens": None, "max_encoder_input_len": 1024, "workers": 1, "max_lora_rank": 64, "max_draft_len": 0,
    "tokens_per_block": 32,
}  # fmt: skip
SETS = [
    "strip_plan", "weight_sparsity", "weight_streaming", "fast_build", "enable_debug_output", "dry_run",
    "monitor_memory", "gather_context_logits", "gather_generation_logits", "gather_all_token_logits",
]  # fmt: skip
PLUGINS = {
    "bert_attention_plugin": "auto", "gpt_attention_plugin": "auto", "fp8_rowwise_gemm_plugin": None,
    "lora_plugin": None, "moe_plugin": "auto", "mamba_conv1d_plugin": "auto", "nccl_plugin": "auto",
}  # fmt: skip
FP8_PLUGINS = ["gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"]
SWITCHES = {
    "dora_plugin": "disable", "context_fmha": "enable", "bert_context_fmha_fp32_acc": "disable",
    "remove_input_padding": "enable", "use_paged_context_fmha": "enable", "use_fp8_context_fmha": "enable",
    "multiple_profiles": "disable", "paged_state": "enable", "streamingllm": "disable", "reduce_fusion": "disable",
    "user_buffer": "disable", "pp_reduce_scatter": "disable",
}  # fmt: skip


def plugin_names(line):
    """Return plugins and switches that end up in ``plugin_config``."""
    names = [*PLUGINS, "gemm_plugin", *FP8_PLUGINS, *SWITCHES]
    if at_least(line, "0.18"):
        names += ["gemm_allreduce_plugin", "fuse_fp4_quant", "use_fused_mlp"]
    return [*names, "norm_quant_fusion"] if at_least(line, "0.19") else names


def at_least(line, first):
    return LINES.index(line) >= LINES.index(first)


def parser_of(line, without=()):
    """Return the line's parser; ``without`` names options that this build of it lacks."""
    parser = argparse.ArgumentParser(prog="trtllm-build")

    def add(name, *more, **rest):
        if name not in without:
            parser.add_argument(f"--{name}", *more, **rest)

    for name, default in TEXTS.items():
        add(name, default=default)
    for name, default in NUMBERS.items():
        add(name, type=int, default=default)
    add("max_seq_len", "--max_decoder_seq_len", dest="max_seq_len", type=int, default=None)
    add("max_prompt_embedding_table_size", "--max_multimodal_len", type=int, default=0)
    add("kv_cache_type", type=str.lower, choices=["continuous", "paged", "disabled"], default=None)
    add("paged_kv_cache", default=argparse.SUPPRESS)
    add("profiling_verbosity", choices=["layer_names_only", "detailed", "none"], default="layer_names_only")
    add("logits_dtype", choices=["float16", "float32"], default=None)
    levels = ["internal_error", "error", "warning", "info", "verbose", "debug"]
    add("log_level", choices=levels, default="info")
    add("lora_dir", nargs="+", default=None)
    add("lora_ckpt_source", choices=["hf", "nemo"], default="hf")
    add("lora_target_modules", nargs="+", choices=LORA_MODULES, default=None)
    add("speculative_decoding_mode", choices=list(MODES), default=None)
    for name in SETS:
        add(name, action="store_true")
    for name, default in PLUGINS.items():
        add(name, choices=DTYPES, default=default)
    add("gemm_plugin", choices=[*DTYPES, "fp8", "nvfp4"], default=None)
    for name in FP8_PLUGINS:
        add(name, choices=["fp8", "disable"], default=None)
    for name, default in SWITCHES.items():
        add(name, choices=SWITCH, default=default)
    _add_of_some_lines(line, add)
    return parser


def _add_of_some_lines(line, add):
    if at_least(line, "0.18"):
        add("gemm_allreduce_plugin", choices=["float16", "bfloat16", "disable"], default=None)
        add("fuse_fp4_quant", choices=SWITCH, default="disable")
        add("use_fused_mlp", choices=SWITCH, default="enable")
        add("visualize_network", default=None)
    else:
        add("use_fused_mlp", action="store_true")
        add("visualize_network", action="store_true")
    if at_least(line, "0.19"):
        add("norm_quant_fusion", choices=SWITCH, default="disable")
    if not at_least(line, "0.21"):
        add("auto_parallel", type=int, default=1)
        add("gpus_per_node", type=int, default=8)
        add("cluster_key", default=None)
