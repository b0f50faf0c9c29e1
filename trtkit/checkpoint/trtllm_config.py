"""TensorRT-LLM's ``config.json``, both ways. Only keys that every engine-era version takes are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trtkit
from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.model import ModelConfig, Moe
from trtkit.catalog.parallel import GPUS_PER_NODE, ONE_RANK, Parallelism
from trtkit.catalog.positive import is_positive
from trtkit.errors import InputError

DTYPES = ("bfloat16", "float16", "float32")
_FIELDS = {
    "architecture": "architecture",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_size": "head_size",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "hidden_act": "hidden_act",
    "norm_epsilon": "norm_epsilon",
    "max_position_embeddings": "max_position_embeddings",
    "rotary_base": "rotary_base",
    "rotary_scaling": "rotary_scaling",
    "attn_bias": "attn_bias",
    "mlp_bias": "mlp_bias",
    # Not TensorRT-LLM's: it compares the tensors. Unknown keys at the top level are taken with a warning.
    "tie_word_embeddings": "tie_word_embeddings",
    "dtype": "dtype",
}
"""Key of the file to field of :class:`ModelConfig`."""
_COUNTS = frozenset({
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_size",
    "intermediate_size", "vocab_size", "max_position_embeddings",
})  # fmt: skip
_MOST_RANKS = 4096
_NUMBERS = frozenset({"norm_epsilon", "rotary_base"})
_FLAGS = frozenset({"attn_bias", "mlp_bias"})


def write_config(
    config: ModelConfig, *, dtype: str, quantization: Mapping[str, Any], parallelism: Parallelism = ONE_RANK
) -> dict[str, Any]:
    """Return the content of ``config.json``.

    ``mapping`` and ``quantization`` become keyword arguments of the loader: a key that its version does not know is
    a TypeError there, so both hold the least.
    """
    content = {key: getattr(config, field) for key, field in _FIELDS.items()}
    return {
        "producer": {"name": "trtkit", "version": trtkit.__version__},
        **content,
        "dtype": dtype,
        "logits_dtype": "float32",
        # The runtime's max_attention_window; nothing in the engine depends on it.
        **({"sliding_window": config.sliding_window} if config.sliding_window else {}),
        **({"moe": _moe(config.moe)} if config.moe else {}),
        **config.numerics,
        **ARCHITECTURES[config.architecture].engine_config(config),
        "use_parallel_embedding": parallelism.parallel_embedding,
        "embedding_sharding_dim": 0,
        "mapping": _mapping(parallelism),
        "quantization": dict(quantization),
    }


def _mapping(ranks: Parallelism) -> dict[str, int]:
    mapping = {"world_size": ranks.world, "tp_size": ranks.tp, "pp_size": ranks.pp}
    if ranks.gpus_per_node != GPUS_PER_NODE:
        mapping["gpus_per_node"] = ranks.gpus_per_node
    # Without the keys loaders divide every expert among all ranks.
    experts = {"moe_tp_size": ranks.moe_tp, "moe_ep_size": ranks.moe_ep}
    return {**mapping, **experts} if ranks.moe_ep > 1 else mapping


def _moe(moe: Moe) -> dict[str, int]:
    """Return ``MoeConfig``'s keyword arguments; modes are NONE 0 and RENORMALIZE 1."""
    shared = {"shared_expert_intermediate_size": moe.shared_intermediate_size}
    return {
        "num_experts": moe.num_experts,
        "top_k": moe.experts_per_token,
        "normalization_mode": int(moe.renormalize),
        **(shared if moe.shared_intermediate_size else {}),
    }


def read_config(content: Mapping[str, Any], *, path: Path) -> ModelConfig:
    """Return the model that the ``config.json`` at ``path`` describes; it holds no special tokens.

    Raises:
        InputError: A key is missing or its value cannot be; the message names it.
    """
    # A converted checkpoint always has a head of its own; a tied one is a copy.
    keys = [key for key in _FIELDS if key != "tie_word_embeddings"]
    for key in keys:
        if key not in content or not _can_be(key, content[key]):
            raise InputError(f"{key} is missing or malformed", path=path)
    arch = ARCHITECTURES[content["architecture"]]
    for key in (*arch.numerics, *arch.engine_keys):
        if key not in content:
            raise InputError(f"{key} is missing", path=path)
    return ModelConfig(
        **{_FIELDS[key]: content[key] for key in keys} | dict(arch.model_fields(content)),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_ids=(),
        pad_token_id=None,
        moe=_read_moe(content, path) if "num_experts" in arch.keys else None,
        sliding_window=_window(content),
        numerics={key: content[key] for key in arch.numerics},
    )


def _window(content: Mapping[str, Any]) -> int | None:
    """Return the window; one that the longest sequence does not exceed is none."""
    window = content.get("sliding_window")
    return window if type(window) is int and window < content["max_position_embeddings"] else None


def read_mapping(content: Mapping[str, Any], *, path: Path) -> Parallelism:
    """Return the ranks that the ``config.json`` at ``path`` is for.

    Raises:
        InputError: The numbers contradict each other.
    """
    given = content.get("mapping")
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise InputError("mapping is no object", path=path)
    world, tp, pp, moe_ep = (given.get(key, 1) for key in ("world_size", "tp_size", "pp_size", "moe_ep_size"))
    moe_ep = 1 if moe_ep == -1 else moe_ep  # loaders' own word for "no groups"
    moe_tp = given.get("moe_tp_size", -1)
    if (
        not all(type(size) is int and 0 < size <= _MOST_RANKS for size in (world, tp, pp, moe_ep))
        or world != tp * pp
        or (moe_tp not in (None, -1) and moe_tp * moe_ep != tp)
    ):
        message = (
            f"mapping has world_size {world!r}, tp_size {tp!r}, pp_size {pp!r}, moe_tp_size {moe_tp!r} and "
            f"moe_ep_size {moe_ep!r}"
        )
        raise InputError(f"{message}, which do not fit", path=path, hint="convert the source again")
    shares, gpus = bool(content.get("use_parallel_embedding")), given.get("gpus_per_node")
    gpus = gpus if type(gpus) is int and gpus > 0 else GPUS_PER_NODE
    return Parallelism(tp, pp, moe_ep, shares, gpus)


def _read_moe(content: Mapping[str, Any], path: Path) -> Moe:
    moe = content.get("moe")
    if not isinstance(moe, Mapping):
        raise InputError("moe is missing or malformed", path=path)
    sizes: dict[str, Any] = {
        "moe.num_experts": moe.get("num_experts"),
        "moe.top_k": moe.get("top_k"),
        # Families without a width of their own for experts have the dense one.
        "moe_intermediate_size": content.get("moe_intermediate_size", content["intermediate_size"]),
        "moe_shared_expert_intermediate_size": content.get("moe_shared_expert_intermediate_size", 0),
    }
    for key, size in sizes.items():
        if type(size) is not int or size < (key != "moe_shared_expert_intermediate_size"):
            raise InputError(f"{key} is missing or malformed", path=path)
    # The loader takes a mode that is not there for RENORMALIZE.
    experts, chosen, width, shared_width = sizes.values()
    return Moe(experts, chosen, width, shared_width, renormalize=moe.get("normalization_mode", 1) == 1)


def _can_be(key: str, value: Any) -> bool:
    if key in _COUNTS:
        return type(value) is int and value > 0
    if key in _NUMBERS:
        return is_positive(value)
    if key in _FLAGS:
        return isinstance(value, bool)
    if key == "rotary_scaling":
        return value is None or isinstance(value, Mapping)
    return isinstance(value, str) and (key != "dtype" or value in DTYPES)
