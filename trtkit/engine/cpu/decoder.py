"""What the graph needs to know of a checkpoint's ``config.json``, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtkit.catalog.formats import BACKENDS
from trtkit.errors import StageError

ARCHITECTURES = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "InternLMForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
"""Decoders that are RMSNorm, rotary, grouped-query attention and a gated MLP, and nothing else."""
QUANT_ALGOS = (None, "NO_QUANT", "W8A16")
ACTIVATIONS = ("silu", "swiglu")


@dataclass(frozen=True)
class Decoder:
    """Geometry and numerics of one unsharded decoder."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_epsilon: float
    inverse_frequencies: npt.NDArray[np.float64]
    """Rotary angles per position, shape ``(head_size / 2,)``."""
    int8_weights: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Decoder:
        """Read a TensorRT-LLM ``config.json``; raise :class:`StageError` on what cannot be run."""
        _refuse(config)
        heads = int(config["num_attention_heads"])
        head_size = _head_size(config)
        return cls(
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=head_size,
            norm_epsilon=float(config.get("norm_epsilon", 1e-5)),
            inverse_frequencies=inverse_frequencies(
                head_size, float(config.get("rotary_base", 10_000.0)), config.get("rotary_scaling")
            ),
            int8_weights=_quantization(config).get("quant_algo") == "W8A16",
        )


def inverse_frequencies(
    head_size: int, base: float, scaling: Mapping[str, Any] | None
) -> npt.NDArray[np.float64]:
    """Return the rotary angle per position of each pair of features, scaled as ``linear`` or ``llama3`` says."""
    inverse: npt.NDArray[np.float64] = base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    kind = scaling_kind(scaling)
    if scaling is None or kind == "none":
        return inverse
    if kind == "linear":
        return inverse / float(scaling["factor"])
    return _llama3(inverse, scaling)


def scaling_kind(scaling: Mapping[str, Any] | None) -> str:
    """Return the kind of rotary scaling by TensorRT-LLM's rule (``type`` before ``rope_type``)."""
    if not scaling:
        return "none"
    kind = str(scaling.get("type") or scaling.get("rope_type") or "none")
    return "none" if kind == "default" else kind


def _llama3(inverse: npt.NDArray[np.float64], scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Stretch long wavelengths by ``factor``, keep short ones, blend between (Llama 3.1)."""
    factor = float(scaling.get("factor", 8.0))
    low = float(scaling.get("low_freq_factor", 1.0))
    high = float(scaling.get("high_freq_factor", 4.0))
    original = float(scaling.get("original_max_position_embeddings", 8192))
    # Turns within the original context: 8192 * inverse / 2 pi. At most `low`: stretched; at least `high`: kept.
    turns = original * inverse / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(inverse * (blend + (1.0 - blend) / factor))


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_size") or config["hidden_size"] // config["num_attention_heads"])


def _quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("quantization") or {}


def _refuse(config: Mapping[str, Any]) -> None:
    """Raise on the first property that the graph does not express."""
    quantization = _quantization(config)
    algo = quantization.get("quant_algo")
    refusals = [
        (
            config.get("architecture") not in ARCHITECTURES,
            f"architecture {config.get('architecture')!r} is not supported by the CPU back end",
            f"it runs {', '.join(sorted(ARCHITECTURES))}",
        ),
        (
            algo not in QUANT_ALGOS,
            f"quant_algo {algo!r} cannot run on the CPU back end",
            "use `quantization.weights: none` or `int8-wo` (W8A16) with `engine.backend: cpu`",
        ),
        (
            quantization.get("exclude_modules") is not None,
            "quantization.exclude_modules is not supported by the CPU back end",
            "leave it out: the built-in list (lm_head, embeddings, router) applies",
        ),
        (
            quantization.get("kv_cache_quant_algo") is not None,
            f"kv_cache_quant_algo {quantization.get('kv_cache_quant_algo')!r} cannot run on the CPU back end",
            "use `quantization.kv_cache: auto` with `engine.backend: cpu`",
        ),
        (
            int((config.get("mapping") or {}).get("world_size", 1)) != 1,
            f"checkpoint is split over {(config.get('mapping') or {}).get('world_size')} ranks",
            "convert with tensor_parallel 1 and pipeline_parallel 1 for the CPU back end",
        ),
        (
            config.get("hidden_act", "silu") not in ACTIVATIONS,
            f"hidden_act {config.get('hidden_act')!r} is not supported by the CPU back end",
            f"it runs gated MLPs with {' or '.join(ACTIVATIONS)}",
        ),
        (
            scaling_kind(config.get("rotary_scaling")) not in {"none", *BACKENDS["cpu"].rope_types},
            f"rotary scaling {scaling_kind(config.get('rotary_scaling'))!r} is not supported by the CPU back end",
            "it runs plain, linear and llama3 rotary embeddings",
        ),
        (
            config.get("rotary_embedding_dim") not in {None, 0, _head_size(config)},
            f"rotary_embedding_dim {config.get('rotary_embedding_dim')} is not supported by the CPU back end",
            "it rotates whole heads only",
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
