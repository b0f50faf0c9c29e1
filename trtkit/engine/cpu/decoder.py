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

Array = npt.NDArray[np.float64]
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
)
KV_CACHE_ALGOS = (None, "INT8", "FP8")


@dataclass(frozen=True)
class Family:
    """What the model class of a family says, and no ``config.json``."""

    parallel: bool = False
    """Attention and MLP read the same residual, and are added together."""
    fused_gate: bool = False
    """``fc`` holds both branches of the MLP; the second half is activated."""
    scaled_embedding: bool = False
    """The embedding is multiplied with the root of the hidden size."""
    fixed_epsilon: tuple[str, ...] = ()
    """Norms with an epsilon of 1e-5, whatever ``norm_epsilon`` says."""
    rotary: bool = True


_LLAMA = Family()
_GEMMA = Family(scaled_embedding=True)
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "InternLMForCausalLM": _LLAMA,
    "GraniteForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA,
    "Gemma3ForCausalLM": _GEMMA,
    "Phi3ForCausalLM": Family(fused_gate=True),
    "GPT2LMHeadModel": Family(rotary=False),
    "GPTNeoXForCausalLM": Family(
        parallel=True, fixed_epsilon=("input_layernorm", "post_attention_layernorm", "ln_f")
    ),
    "FalconForCausalLM": Family(parallel=True, fixed_epsilon=("ln_f", "post_layernorm")),
}
ACTIVATIONS = {
    "silu": "silu",
    "swiglu": "silu",
    # TensorRT-LLM has one GELU, the approximation by tanh.
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
}
FIXED_EPSILON = 1e-5


@dataclass(frozen=True)
class Decoder:
    """Geometry and numerics of one unsharded decoder."""

    family: Family
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    activation: str
    norm_epsilon: float
    inverse_frequencies: Array
    """Rotary angles per position, one for each rotated pair of features; none without rotary embedding."""
    local_frequencies: Array | None
    """The same for layers with a sliding window, where these differ."""
    rotary_scale: float
    """Factor of all cosines and sines."""
    global_every: int
    """Every n-th layer is none of those."""
    embedding_scale: float
    attention_scale: float
    residual_scale: float
    logits_scale: float
    logits_cap: float | None
    kv_cache_algo: str | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Decoder:
        """Read a TensorRT-LLM ``config.json``; raise :class:`StageError` on what cannot be run."""
        _refuse(config)
        heads = int(config["num_attention_heads"])
        head_size, hidden_size = _head_size(config), int(config["hidden_size"])
        family, local_base = FAMILIES[config["architecture"]], config.get("rope_local_base_freq")
        embedding = math.sqrt(hidden_size) if family.scaled_embedding else 1.0
        return cls(
            family=family,
            hidden_size=hidden_size,
            num_layers=int(config["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=head_size,
            activation=ACTIVATIONS[config.get("hidden_act", "silu")],
            norm_epsilon=float(config.get("norm_epsilon", 1e-5)),
            inverse_frequencies=_frequencies(config, family, float(config.get("rotary_base", 10_000.0))),
            local_frequencies=None if local_base is None else _frequencies(config, family, float(local_base)),
            rotary_scale=_rotary_scale(config),
            global_every=int(config.get("sliding_window_pattern") or 1),
            embedding_scale=embedding * float(config.get("embedding_multiplier", 1.0)),
            attention_scale=_attention_scale(config, head_size),
            residual_scale=float(config.get("residual_multiplier", 1.0)),
            logits_scale=float(config.get("output_multiplier_scale", 1.0)),
            logits_cap=config.get("final_logit_softcapping"),
            kv_cache_algo=_quantization(config).get("kv_cache_quant_algo"),
        )

    def is_local(self, layer: int) -> bool:
        """Return whether a layer takes ``local_frequencies``."""
        return self.local_frequencies is not None and (layer + 1) % self.global_every != 0


def _frequencies(config: Mapping[str, Any], family: Family, base: float) -> Array:
    if not family.rotary:
        return np.zeros(0)
    rotated = int(_head_size(config) * float(config.get("rotary_pct", 1.0)))
    base = float(config.get("rotary_emb_base", base))
    frequencies = inverse_frequencies(rotated, base, config.get("rotary_scaling"))
    factors = config.get("longrope_scaling_short_factors")
    return frequencies if factors is None else frequencies / np.asarray(factors, np.float64)


def _rotary_scale(config: Mapping[str, Any]) -> float:
    """Return LongRoPE's factor: 128k positions made of 4k are sqrt(1 + ln 32 / ln 4096) = 1.19."""
    original = config.get("original_max_position_embeddings")
    if "longrope_scaling_short_factors" not in config or original is None:
        return 1.0
    ratio = float(config["max_position_embeddings"]) / float(original)
    return 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(float(original)))


def _attention_scale(config: Mapping[str, Any], head_size: int) -> float:
    """Return what scores are multiplied with; Gemma 2 and 3 name the size that stands for the head's."""
    scalar = float(config.get("query_pre_attn_scalar") or head_size)
    return math.sqrt(1 / scalar) * float(config.get("attention_multiplier", 1.0))


def inverse_frequencies(head_size: int, base: float, scaling: Mapping[str, Any] | None) -> Array:
    """Return the rotary angle per position of each pair of features, scaled as ``linear`` or ``llama3`` says."""
    inverse: Array = base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
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


def _llama3(inverse: Array, scaling: Mapping[str, Any]) -> Array:
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
            config.get("architecture") not in FAMILIES,
            f"architecture {config.get('architecture')!r} is not supported by the CPU back end",
            f"it runs {', '.join(FAMILIES)}",
        ),
        (
            algo not in QUANT_ALGOS,
            f"quant_algo {algo!r} cannot run on the CPU back end",
            f"with `engine.backend: cpu` use `quantization.weights: {' | '.join(BACKENDS['cpu'].weights)}`",
        ),
        (
            quantization.get("exclude_modules") is not None,
            "quantization.exclude_modules is not supported by the CPU back end",
            "leave it out: the built-in list (lm_head, embeddings, router) applies",
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
            not in {None, 0, int(_head_size(config) * float(config.get("rotary_pct", 1.0)))},
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
