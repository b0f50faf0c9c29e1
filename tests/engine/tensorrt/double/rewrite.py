"""What the builder makes of its arguments, in its own order, and the ``config.json`` that it writes."""

import math

from flags import MODES, at_least, plugin_names

FP8_CONTEXT = {"FP8", "W4A8_AWQ", "NVFP4"}
SM100_OFF = [
    "gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin",
    "bert_context_fmha_fp32_acc",
]  # fmt: skip
REDUCE_FUSION = {"LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM"}


def reject(args, sm, line):
    """Refuse what the command line itself refuses."""
    if args.gather_all_token_logits:
        args.gather_context_logits = args.gather_generation_logits = True
    if args.gather_context_logits and args.max_draft_len > 0:
        raise RuntimeError("Gather context logits is not support with draft len > 0.")
    if args.multiple_profiles == "enable" and args.opt_num_tokens is not None:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set.")
    if args.streamingllm == "enable" and at_least(line, "1.0"):
        raise AssertionError("StreamingLLM is no longer supported")
    if sm == 100:
        for name in SM100_OFF:
            if getattr(args, name) not in (None, "disable"):
                raise NotImplementedError(f"{name} is not supported on SM {sm}.")


def engine_config(args, model, sm, line, version):
    """Return the engine's ``config.json``."""
    model = _defaults(model) | model
    if args.logits_dtype:
        model["logits_dtype"] = args.logits_dtype
    plugins = _plugins(args, line) | {"dtype": model["dtype"], "manage_weights": args.fast_build}
    build = _shapes(args, model)
    _clip(build, plugins, args)
    _fusions(plugins, model)
    _speculate(build, model, args)
    _attention(plugins, model, sm)
    _refuse_by_sm(model, sm)
    algo = (model.get("quantization") or {}).get("quant_algo")
    world = (model.get("mapping") or {}).get("world_size", 1)
    plugins["nccl_plugin"] = model["dtype"] if world > 1 else None
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        plugins["fp8_rowwise_gemm_plugin"] = model["dtype"]
    if build["speculative_decoding_mode"] == MODES["eagle"]:
        assert build["max_batch_size"] <= 512, "Max batch size > 512 is not supported for EAGLE"
        assert build["max_draft_len"] <= 256, "Max draft len > 256 is not supported for EAGLE"
        plugins["use_paged_context_fmha"] = True
    name = "PAGED" if args.kv_cache_type is None else args.kv_cache_type.upper()
    build["kv_cache_type"] = name.lower() if at_least(line, "1.1") else name
    plugins["paged_kv_cache"], plugins["paged_state"] = name == "PAGED", False
    build["plugin_config"], build["lora_config"] = plugins, _lora(args, plugins)
    return {"version": version, "pretrained_config": model, "build_config": build}


def _defaults(model):
    """Return what the classes fill in."""
    return {
        "logits_dtype": "float32",
        "hidden_act": "gelu",
        "norm_epsilon": 1e-5,
        "num_key_value_heads": model["num_attention_heads"],
        "intermediate_size": 4 * model["hidden_size"],
        "head_size": model["hidden_size"] // model["num_attention_heads"],
        "rotary_base": 10000.0,
        "rotary_scaling": None,
        "attn_bias": False,
        "mlp_bias": False,
    }


def _plugins(args, line):
    found = {"tokens_per_block": args.tokens_per_block}
    for name in plugin_names(line):
        value = getattr(args, name)
        found[name] = {"enable": True, "disable": False}.get(value, value)
        if name.endswith("_plugin") and name != "dora_plugin" and value == "disable":
            found[name] = None
    return found


def _shapes(args, model):
    names = [
        "max_input_len", "max_seq_len", "max_batch_size", "max_beam_width", "max_num_tokens", "opt_num_tokens",
        "max_prompt_embedding_table_size", "gather_context_logits", "gather_generation_logits", "weight_sparsity",
        "weight_streaming", "profiling_verbosity", "max_draft_len", "input_timing_cache", "output_timing_cache",
        "max_encoder_input_len", "monitor_memory", "enable_debug_output",
    ]  # fmt: skip
    build = {name: getattr(args, name) for name in names}
    mode = MODES[args.speculative_decoding_mode] if args.speculative_decoding_mode else 1
    build |= {
        "speculative_decoding_mode": mode,
        "strongly_typed": True,
        "use_refit": False,
        "opt_batch_size": 8,
    }
    build |= {"use_strip_plan": args.strip_plan, "force_num_profiles": None, "use_mrope": False}
    if build["max_seq_len"] is None:
        scaling = model.get("rotary_scaling") or {}
        kind = scaling.get("type", scaling.get("rope_type"))
        factor = 1 if kind in {"su", "longrope", "llama3"} else scaling.get("factor", 1.0)
        build["max_seq_len"] = math.ceil((model.get("max_position_embeddings") or 2048) * factor)
    return build


def _clip(build, plugins, args):
    build["max_input_len"] = min(build["max_input_len"], build["max_seq_len"])
    most = build["max_batch_size"] * build["max_seq_len"]
    if not plugins["remove_input_padding"]:
        build["max_num_tokens"] = most
        return
    if build["opt_num_tokens"] is None and not plugins["multiple_profiles"]:
        build["opt_num_tokens"] = min(
            build["max_batch_size"] * build["max_beam_width"], build["max_num_tokens"]
        )
    build["max_num_tokens"] = min(build["max_num_tokens"], most)
    if plugins["context_fmha"]:
        build["max_num_tokens"] = max(build["max_num_tokens"], plugins["tokens_per_block"])
    else:
        build["max_num_tokens"] = max(build["max_num_tokens"], build["max_input_len"])
    if build["opt_num_tokens"] is not None:
        build["opt_num_tokens"] = min(build["opt_num_tokens"], build["max_num_tokens"])


def _fusions(plugins, model):
    architecture, quant = model["architecture"], model.get("quantization") or {}
    tp = (model.get("mapping") or {}).get("tp_size", 1)
    if plugins["streamingllm"]:
        plugins["use_paged_context_fmha"] = False
    if tp == 1 or architecture not in REDUCE_FUSION:
        plugins["reduce_fusion"] = False
    if not plugins["reduce_fusion"]:
        plugins["user_buffer"] = False
    if "norm_quant_fusion" in plugins:
        is_nvfp4 = architecture == "LlamaForCausalLM" and quant.get("quant_algo") == "NVFP4"
        plugins["norm_quant_fusion"] &= is_nvfp4 and not plugins["reduce_fusion"]


def _speculate(build, model, args):
    if build["max_draft_len"] == 0:
        build["max_draft_len"] = model.get("max_draft_len", 0)
    if build["speculative_decoding_mode"] == 1:
        return
    build["max_seq_len"] += build["max_draft_len"]
    if build["speculative_decoding_mode"] == MODES["eagle"]:
        build["max_seq_len"] += model.get("num_eagle_layers", 1)
    tokens = build["max_batch_size"] * (build["max_draft_len"] + 1)
    build["max_num_tokens"] = max(build["max_num_tokens"], tokens)


def _attention(plugins, model, sm):
    quant = model.get("quantization") or {}
    kv = quant.get("kv_cache_quant_algo")
    if not plugins["context_fmha"]:
        plugins["use_fp8_context_fmha"] = plugins["use_paged_context_fmha"] = False
    elif quant.get("quant_algo") not in FP8_CONTEXT or sm < 89:
        plugins["use_fp8_context_fmha"] = False
        if kv == "FP8":
            plugins["use_paged_context_fmha"] = False
    elif plugins["use_paged_context_fmha"]:
        plugins["use_fp8_context_fmha"] = kv == "FP8"
    if kv == "INT8":
        plugins["use_paged_context_fmha"] = False


def _refuse_by_sm(model, sm):
    quant = model.get("quantization") or {}
    algo = quant.get("quant_algo") or ""
    if not 100 <= sm < 120:
        return
    if algo.startswith(("W8A16", "W4A16", "W4A8")) or quant.get("kv_cache_quant_algo") == "INT8":
        raise RuntimeError("INT8/INT4 quantization is not supported on SM>=100.")
    if algo.startswith("W8A8_SQ"):
        raise RuntimeError("SmoothQuant is not supported on SM>=100.")
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        raise RuntimeError("Per-channel or per-token scaling is not supported on SM>=100.")


def _lora(args, plugins):
    if plugins["lora_plugin"] is None:
        return {"lora_dir": [], "lora_ckpt_source": "hf", "max_lora_rank": 64, "lora_target_modules": []}
    modules = list(args.lora_target_modules or [])
    if not modules and not args.lora_dir:
        raise AssertionError("lora_target_modules or lora_dir is needed with lora_plugin")
    if {"attn_q", "attn_k", "attn_v"} & set(modules):
        modules += [each for each in ("attn_q", "attn_k", "attn_v") if each not in modules]
    folders = [f"lora/{index}" for index in range(len(args.lora_dir or []))]
    return {
        "lora_dir": folders,
        "lora_ckpt_source": args.lora_ckpt_source,
        "max_lora_rank": args.max_lora_rank,
        "lora_target_modules": modules,
    }
