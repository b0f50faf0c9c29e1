"""Which checkpoints the CPU back end refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.schemes import MIXED
from trtkit.engine.decoder import ACTIVATIONS, DENSE, Decoder, head_size_of, quantization_of
from trtkit.engine.rotary import scaling_kind
from trtkit.errors import StageError

QUANT_ALGOS = (
    None,
    "NO_QUANT",
    "W8A16",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_CHANNEL",
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "W4A16_AWQ",
    "W4A8_AWQ",
)
KV_CACHE_ALGOS = (None, "INT8", "FP8")


def read_decoder(config: Mapping[str, Any]) -> Decoder:
    """Read a TensorRT-LLM ``config.json``; raise :class:`StageError` on what cannot be run."""
    _refuse(config)
    return Decoder.from_config(config)


def _refuse(config: Mapping[str, Any]) -> None:
    """Raise on the first property that the graph does not express."""
    quantization = quantization_of(config)
    algo = quantization.get("quant_algo")
    refusals = [
        (
            config.get("architecture") not in DENSE,
            f"architecture {config.get('architecture')!r} is not supported by the CPU back end",
            f"it runs {', '.join(DENSE)}",
        ),
        (
            algo not in (*QUANT_ALGOS, MIXED),
            f"quant_algo {algo!r} cannot run on the CPU back end",
            f"with `engine.backend: cpu` use `quantization.weights: {' | '.join(BACKENDS['cpu'].weights)}`",
        ),
        (
            quantization.get("kv_cache_quant_algo") not in KV_CACHE_ALGOS,
            f"kv_cache_quant_algo {quantization.get('kv_cache_quant_algo')!r} cannot run on the CPU back end",
            f"with `engine.backend: cpu` use `quantization.kv_cache: {' | '.join(BACKENDS['cpu'].kv_cache)}`",
        ),
        (
            bool(quantization.get("use_meta_recipe")),
            "quantization.use_meta_recipe is not supported by the CPU back end",
            "convert with trtkit, which quantizes all linear layers",
        ),
        (
            int((config.get("mapping") or {}).get("world_size", 1)) != 1,
            f"checkpoint is split over {(config.get('mapping') or {}).get('world_size')} ranks",
            "convert with tensor_parallel 1 and pipeline_parallel 1 for the CPU back end",
        ),
        (
            config.get("hidden_act", "silu") not in ACTIVATIONS,
            f"hidden_act {config.get('hidden_act')!r} is not supported by the CPU back end",
            f"it runs {', '.join(ACTIVATIONS)}",
        ),
        (
            scaling_kind(config.get("rotary_scaling")) not in {"none", *BACKENDS["cpu"].rope_types},
            f"rotary scaling {scaling_kind(config.get('rotary_scaling'))!r} is not supported by the CPU back end",
            "it runs plain, linear and llama3 rotary embeddings",
        ),
        (
            config.get("rotary_embedding_dim")
            not in {None, 0, int(head_size_of(config) * float(config.get("rotary_pct", 1.0)))},
            f"rotary_embedding_dim {config.get('rotary_embedding_dim')} is not supported by the CPU back end",
            "it rotates the part of a head that rotary_pct names",
        ),
        (
            config.get("attn_logit_softcapping") is not None,
            "attn_logit_softcapping is not supported by the CPU back end: its attention has no cap on scores",
            "use a model without it, or a GPU back end",
        ),
        (
            str(config.get("position_embedding_type", "")).startswith("alibi"),
            "ALiBi is not supported by the CPU back end",
            "use a model with rotary embeddings, or a GPU back end",
        ),
        (
            bool((config.get("moe") or {}).get("num_experts")),
            "mixture-of-experts checkpoints are not supported by the CPU back end",
            "use a dense model, or a GPU back end",
        ),
    ]
    for refused, message, hint in refusals:
        if refused:
            raise StageError(message, hint=hint)
