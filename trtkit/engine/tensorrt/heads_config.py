"""The ``config.json`` of a checkpoint with heads for draft tokens, against the model that they were trained for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.checkpoint.json_object import section
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.plan.types import Plan

_CLASSES = {
    "medusa": ("MedusaForCausalLM", "MedusaLlamaForCausalLM"),
    "eagle": ("EagleForCausalLM",),
}
_FIELDS = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
}
"""Keys that say whether it is the contract's model."""
_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "gelu",
    "norm_epsilon": 1e-5,
    "rotary_base": 10000.0,
    "attn_bias": False,
    "mlp_bias": False,
}
"""Keys without which no tensor would be missed, and what the Llama class takes where one is left out."""
_POSITIONS = "position_embedding_type"
_TYPES = {"model_type": str, "use_parallel_embedding": bool, "exclude_modules": list}
_LOGITS = ("float32", "float16", None)
_KEYS = {
    "mapping": frozenset({
        "world_size", "tp_size", "pp_size", "cp_size", "moe_tp_size", "moe_ep_size", "gpus_per_node",
        "moe_cluster_size", "attn_tp_size", "attn_cp_size", "cp_config", "pp_partition", "enable_attention_dp",
        "enable_lm_head_tp_in_adp", "auto_parallel",
    }),
    "quantization": frozenset({
        "quant_algo", "kv_cache_quant_algo", "group_size", "smoothquant_val", "clamp_val", "use_meta_recipe",
        "has_zero_point", "pre_quant_scale", "exclude_modules", "mamba_ssm_cache_dtype",
    }),
}  # fmt: skip
"""Keyword arguments of the loader, of any release line: it ends with a TypeError at others."""
NUMBERS = {
    "medusa": {"num_medusa_heads": 4, "num_medusa_layers": 1, "max_draft_len": 63},
    "eagle": {"num_eagle_layers": 1, "max_non_leaves_per_layer": 10, "max_draft_len": 63},
}
"""Counts, and what the classes take where one is left out."""
_MOST = 4096


def config_problems(config: Mapping[str, Any], plan: Plan, mode: str) -> Iterator[str]:
    """Yield what is not the plan's model and formats, or no value that a loader takes; ranks are not looked at."""
    yield from _model_problems(config, plan, mode)
    yield from _numeric_problems(config, plan)
    yield from _number_problems(config, mode)
    yield from _key_problems(config)


def _model_problems(config: Mapping[str, Any], plan: Plan, mode: str) -> Iterator[str]:
    name, model = config.get("architecture"), plan.model
    if name is None:
        yield f"is no TensorRT-LLM checkpoint: {CHECKPOINT_CONFIG} names no architecture"
        return
    if name not in _CLASSES[mode]:
        yield f"is a {name}, not a {_CLASSES[mode][0]}"
    for key, field in _FIELDS.items():
        if config.get(key) != getattr(model, field):
            yield f"{key} is {config.get(key)!r}, the model has {getattr(model, field)}"
    is_qwen = "qwen" in str(config.get("model_type", "")).lower()
    if mode == "medusa" and is_qwen != model.architecture.startswith("Qwen"):
        base = "Qwen" if is_qwen else "Llama"
        yield f"model_type {config.get('model_type')!r} makes the builder take a {base} for {model.architecture}"
    if mode == "eagle":
        yield from _net_problems(config.get("eagle_net_config"), plan)
    block = section(config, "quantization")
    for key in ("quant_algo", "kv_cache_quant_algo"):
        if block.get(key) != getattr(plan.quantization, key):
            yield f"quantization.{key} is {block.get(key)}, the contract says {getattr(plan.quantization, key)}"
    if config.get("dtype") != plan.dtype:
        yield f"dtype is {config.get('dtype')}, the contract says {plan.dtype}"


def _numeric_problems(config: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Compare what changes answers and no tensor: heads come in a copy of the model, which takes its place."""
    model = plan.model
    qwen = {"attn_bias": True} if model.architecture.startswith("Qwen") else {}
    usual = {**_DEFAULTS, "head_size": model.hidden_size // model.num_heads, **qwen}
    for key, default in usual.items():
        if config.get(key, default) != getattr(model, key):
            yield f"{key} is {config.get(key, default)!r}, the model has {getattr(model, key)!r}"
    for key, value in model.numerics.items():
        if key in config and config[key] != value:
            yield f"{key} is {config[key]!r}, the model has {value!r}"
    if _rope(config.get("rotary_scaling")) != _rope(model.rotary_scaling):
        yield f"rotary_scaling is {config.get('rotary_scaling')!r}, the model has {model.rotary_scaling!r}"
    # Converters write the longest sequence before or after scaling.
    positions, need = config.get("max_position_embeddings"), plan.limits.max_seq_len
    if not _counts(positions) or positions < min(need, model.max_position_embeddings):
        yield f"max_position_embeddings is {positions!r}, and the contract's sequences have {need} tokens"
    # Without the right name there would be no table of positions.
    kind = ARCHITECTURES[model.architecture].engine_config(model).get(_POSITIONS)
    if kind is not None and config.get(_POSITIONS) != kind:
        yield f"{_POSITIONS} is {config.get(_POSITIONS)!r}, and the model's is {kind!r}"
    if config.get("logits_dtype") not in _LOGITS:
        yield f"logits_dtype is {config['logits_dtype']!r}, and has to be float32 or float16"


def _rope(scaling: object) -> object:
    """Return a scaling with its type by one name: loaders take either."""
    if not isinstance(scaling, Mapping):
        return scaling
    kind = scaling.get("type", scaling.get("rope_type"))
    rest = {key: value for key, value in scaling.items() if key not in ("type", "rope_type")}
    return None if kind == "default" else {"type": kind, **rest}


def _key_problems(config: Mapping[str, Any]) -> Iterator[str]:
    for name, known in _KEYS.items():
        block = config.get(name)
        if block is not None and not isinstance(block, Mapping):
            yield f"{name} is {block!r}, and has to be an object"
        for key in sorted(set(block or ()) - known) if isinstance(block, Mapping) else ():
            yield f"{name}.{key} is no key that a loader takes"
    for key, kind in _TYPES.items():
        value = section(config, "quantization").get(key) if key == "exclude_modules" else config.get(key)
        if value is not None and type(value) is not kind:
            yield f"{key} is {value!r}, and has to be a {kind.__name__}"
    if config.get("embedding_sharding_dim") not in (0, None):
        # 1 stands for columns: the shapes are those of rows.
        yield f"embedding_sharding_dim is {config['embedding_sharding_dim']!r}, and has to be 0"
    group = section(config, "quantization").get("group_size")
    if group is not None and not _counts(group):
        yield f"quantization.group_size is {group!r}, and has to be a positive whole number"


def _net_problems(net: object, plan: Plan) -> Iterator[str]:
    """A net reads the model's hidden states and writes its vocabulary; its layers and heads are its own."""
    if not isinstance(net, Mapping):
        yield "eagle_net_config, the whole configuration of a head, is missing"
        return
    for key in ("hidden_size", "vocab_size"):
        if net.get(key) != getattr(plan.model, key):
            yield f"eagle_net_config.{key} is {net.get(key)!r}, the model has {getattr(plan.model, key)}"
    for key in ("num_hidden_layers", "num_attention_heads", "intermediate_size"):
        if not _counts(net.get(key)):
            yield f"eagle_net_config.{key} is {net.get(key)!r}, and has to be a positive whole number"
    if net.get("dtype", plan.dtype) != plan.dtype:
        yield f"eagle_net_config.dtype is {net['dtype']!r}, the contract says {plan.dtype}"


def _number_problems(config: Mapping[str, Any], mode: str) -> Iterator[str]:
    for key, usual in NUMBERS[mode].items():
        value = config.get(key, usual)
        if not _counts(value):
            yield f"{key} is {value!r}, and has to be a positive whole number"
        elif value > _MOST:
            yield f"{key} is {value}, and {_MOST} is more than any model has"


def _counts(value: object) -> TypeGuard[int]:
    return type(value) is int and value > 0
