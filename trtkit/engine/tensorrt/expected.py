"""What an engine's ``config.json`` has to say: the plan's shapes and switches, as the builder writes them down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtkit.catalog.parallel import GPUS_PER_NODE
from trtkit.catalog.trtllm import FLAGS
from trtkit.engine.tensorrt.argv import Value, flags_of, target_of
from trtkit.engine.tensorrt.job import PROFILES
from trtkit.plan.types import Plan

_MODEL_KEYS = (
    "architecture", "dtype", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_size", "intermediate_size", "max_position_embeddings", "hidden_act",
    "norm_epsilon", "rotary_base",
)  # fmt: skip
_IF_GIVEN = (
    "rotary_scaling", "rotary_pct", "rotary_embedding_dim", "position_embedding_type", "qk_layernorm", "attn_bias",
    "mlp_bias", "bias", "residual_mlp", "qwen_type", "moe", "num_medusa_heads", "num_medusa_layers",
    "num_eagle_layers", "max_non_leaves_per_layer", "max_draft_len",
)  # fmt: skip
"""Of the model, beside what only its family has; classes have defaults of their own where the checkpoint is silent."""
_QUANTIZATION_IF_GIVEN = ("group_size", "has_zero_point", "pre_quant_scale", "clamp_val", "exclude_modules")
_MAPPING_IF_GIVEN = ("cp_size", "moe_tp_size", "moe_ep_size", "gpus_per_node")
_MODES = {
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
"""Bits of ``SpeculativeDecodingMode``; 1 for none."""
_SHAPES = ("max_batch_size", "max_input_len", "max_num_tokens", "max_beam_width")
_PASSED_ON = ("profiling_verbosity", "max_prompt_embedding_table_size", "enable_debug_output")
_SWITCHES = ("enable", "disable")
_REWRITTEN = (
    "context_fmha", "use_paged_context_fmha", "use_fp8_context_fmha", "reduce_fusion", "user_buffer",
    "norm_quant_fusion",
)  # fmt: skip
"""Switches of which the builder makes something else, as the plan foresees; others stay as they were asked for."""
_RECURRENT = "paged_state"
"""Of models without attention: off in all that trtkit knows, whatever was asked."""
_ANY_OF_ITS_DTYPE = "auto"
_MAY_GROW = ("exclude_modules", "lora_target_modules")
"""Lists to which the builder adds by itself: modules that row-wise FP8 leaves out, and those missing of Q, K and V."""


@dataclass(frozen=True)
class Difference:
    """One key whose value is not what was planned."""

    key: str
    planned: Any
    built: Any

    def __str__(self) -> str:
        return f"{self.key}: planned {self.planned!r}, built {self.built!r}"


def differences(plan: Plan, checkpoint: Mapping[str, Any], built: Mapping[str, Any]) -> list[Difference]:
    """Return where the engine's ``config.json`` is not what plan and checkpoint say."""
    wanted = expected(plan, checkpoint)
    found = {key: _at(built, key) for key in wanted}
    line, version = target_of(plan).trtllm, str(built.get("version"))
    wrong = [] if version.startswith(f"{line}.") else [Difference("version", f"{line}.x", version)]
    return wrong + [
        Difference(key, value, found[key])
        for key, value in wanted.items()
        if not _agree(key, value, found[key], plan)
    ]


def expected(plan: Plan, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by dotted key."""
    flags = flags_of(plan)
    quantization = checkpoint.get("quantization") or {}
    given = [key for key in (*_MODEL_KEYS, *_IF_GIVEN, *plan.model.numerics) if key in checkpoint]
    model = {f"pretrained_config.{key}": checkpoint[key] for key in given}
    given = [key for key in _QUANTIZATION_IF_GIVEN if quantization.get(key) is not None]
    for key in ("quant_algo", "kv_cache_quant_algo", *given):
        model[f"pretrained_config.quantization.{key}"] = quantization.get(key)
    ranks = target_of(plan).ranks
    sizes = {"world_size": ranks.world, "tp_size": ranks.tp, "pp_size": ranks.pp}
    # The runtime takes each rank's GPU from it; what is usual is not written into checkpoints.
    sizes |= {"gpus_per_node": ranks.gpus_per_node} if ranks.gpus_per_node != GPUS_PER_NODE else {}
    mapping = checkpoint.get("mapping") or {}
    # -1 stands for what follows from the others.
    sizes |= {key: mapping[key] for key in _MAPPING_IF_GIVEN if (mapping.get(key) or -1) > 0}
    model |= {f"pretrained_config.mapping.{key}": value for key, value in sizes.items()}
    model["pretrained_config.logits_dtype"] = (
        flags.get("logits_dtype") or checkpoint.get("logits_dtype") or "float32"
    )
    build = {**_shapes(plan, checkpoint, flags), **_options(flags), **_lora(flags)}
    return {
        **model,
        **{f"build_config.{key}": value for key, value in build.items()},
        **{f"build_config.plugin_config.{key}": value for key, value in _plugins(plan, flags).items()},
    }


def _shapes(plan: Plan, checkpoint: Mapping[str, Any], flags: Mapping[str, Value]) -> dict[str, Any]:
    """Return shapes and speculation; drafts of Medusa and EAGLE are as long as their checkpoint says."""
    mode = flags.get("speculative_decoding_mode")
    draft = int(str(flags.get("max_draft_len") or checkpoint.get("max_draft_len") or 0))
    layers = int(checkpoint.get("num_eagle_layers", 1)) if mode == "eagle" else 0
    return {
        **{key: flags[key] for key in _SHAPES},
        "max_seq_len": plan.limits.max_seq_len + (draft + layers if mode else 0),
        "max_draft_len": draft,
        "speculative_decoding_mode": _MODES[str(mode)] if mode else 1,
        **_optimum(plan, flags),
    }


def _optimum(plan: Plan, flags: Mapping[str, Value]) -> dict[str, Any]:
    """Return the number of tokens that kernels are chosen for; several profiles, and padding, have none."""
    if flags.get("multiple_profiles") == "enable" or flags.get("remove_input_padding") == "disable":
        return {}
    return {"opt_num_tokens": int(target_of(plan).setting("opt_num_tokens").effective)}


def _options(flags: Mapping[str, Value]) -> dict[str, Any]:
    everything = flags.get("gather_all_token_logits") is True
    return {
        "kv_cache_type": flags.get("kv_cache_type", FLAGS["kv_cache_type"].default),
        "gather_context_logits": everything or flags.get("gather_context_logits", False),
        **({} if PROFILES in os.environ else {"force_num_profiles": None}),
        "use_strip_plan": flags.get("strip_plan", False),
        "weight_streaming": flags.get("weight_streaming", False),
        "weight_sparsity": flags.get("weight_sparsity", False),
        **{name: flags.get(name, FLAGS[name].default) for name in _PASSED_ON},
        "strongly_typed": True,
    }


def _lora(flags: Mapping[str, Value]) -> dict[str, Any]:
    if flags.get("lora_plugin", "disable") == "disable":
        return {}
    modules = tuple(str(flags.get("lora_target_modules", "")).split())
    wanted = {"lora_config.max_lora_rank": flags.get("max_lora_rank", FLAGS["max_lora_rank"].default)}
    return wanted | ({"lora_config.lora_target_modules": modules} if modules else {})


def _plugins(plan: Plan, flags: Mapping[str, Value]) -> dict[str, Any]:
    """Return every plugin and switch of the line: what was asked for, or what the plan says becomes of it."""
    target = target_of(plan)
    foreseen = {each.name: each.effective for each in target.settings}
    wanted: dict[str, Any] = {}
    for name, flag in FLAGS.items():
        is_plugin = name.endswith("_plugin") or flag.choices == _SWITCHES
        if not is_plugin or name == _RECURRENT or not flag.in_line(target.trtllm or ""):
            continue
        asked = flags.get(name, flag.default)
        value = foreseen.get(name, asked) if name in _REWRITTEN else asked
        wanted[name] = (
            value == "enable" if flag.choices == _SWITCHES else None if value == "disable" else value
        )
    by_row = {"fp8_rowwise_gemm_plugin": plan.dtype} if plan.quantization.weights == "fp8-rowwise" else {}
    nccl = {"nccl_plugin": plan.dtype if target.ranks.world > 1 else None}
    rest = {"dtype": plan.dtype, "manage_weights": flags.get("fast_build", False)}
    return {**wanted, **by_row, **nccl, **rest, "tokens_per_block": flags["tokens_per_block"]}


def _agree(key: str, wanted: Any, found: Any, plan: Plan) -> bool:
    if found is None and not wanted:
        return True  # a line without the setting has it off, and so has the runtime
    if wanted == _ANY_OF_ITS_DTYPE:
        return found in {_ANY_OF_ITS_DTYPE, plan.dtype}
    if isinstance(wanted, tuple | list) and isinstance(found, list):
        may_grow = key.endswith(_MAY_GROW)
        return all(each in found for each in wanted) if may_grow else list(wanted) == found
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_agree(name, value, found.get(name), plan) for name, value in wanted.items())
    if isinstance(wanted, str) and isinstance(found, str):
        # Enums are written by name, in capitals by lines before 1.1.
        return wanted.lower() == found.lower()
    return bool(wanted == found) and isinstance(wanted, bool) == isinstance(found, bool)


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
