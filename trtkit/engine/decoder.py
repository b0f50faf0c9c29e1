"""What a graph needs to know of a checkpoint's ``config.json``, whatever the back end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.architectures.architecture import Window
from trtkit.engine.rotary import Array, inverse_frequencies, longrope_scale, scaling_kind, yarn_scale
from trtkit.errors import StageError


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
    experts: bool = False
    """The MLP is a mixture of experts."""


_LLAMA = Family()
_GEMMA = Family(scaled_embedding=True)
_EXPERTS = Family(experts=True)
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
    "MixtralForCausalLM": _EXPERTS,
    "Qwen2MoeForCausalLM": _EXPERTS,
    "Qwen3MoeForCausalLM": _EXPERTS,
}
DENSE = tuple(name for name, family in FAMILIES.items() if not family.experts)
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
    window_tokens: int | None
    """Tokens that attention reaches back, itself included."""
    whole_every: int | None
    """Every n-th layer reaches back to the start all the same."""
    embedding_scale: float
    attention_scale: float
    residual_scale: float
    logits_scale: float
    logits_cap: float | None
    kv_cache_algo: str | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Decoder:
        """Read a TensorRT-LLM ``config.json`` that the back end does not refuse."""
        heads = int(config["num_attention_heads"])
        head_size, hidden_size = head_size_of(config), int(config["hidden_size"])
        family, local_base = FAMILIES[config["architecture"]], config.get("rope_local_base_freq")
        embedding = math.sqrt(hidden_size) if family.scaled_embedding else 1.0
        window, whole_every = _window(config)
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
            window_tokens=window,
            whole_every=whole_every,
            embedding_scale=embedding * float(config.get("embedding_multiplier", 1.0)),
            attention_scale=_attention_scale(config, head_size),
            residual_scale=float(config.get("residual_multiplier", 1.0)),
            logits_scale=float(config.get("output_multiplier_scale", 1.0)),
            logits_cap=config.get("final_logit_softcapping"),
            kv_cache_algo=quantization_of(config).get("kv_cache_quant_algo"),
        )

    def is_local(self, layer: int) -> bool:
        """Return whether a layer takes ``local_frequencies``."""
        return self.local_frequencies is not None and (layer + 1) % self.global_every != 0

    def window(self, layer: int) -> int | None:
        """Return how many tokens a layer reaches back, itself included; None for all."""
        whole = self.whole_every is not None and (layer + 1) % self.whole_every == 0
        return None if whole else self.window_tokens


def head_size_of(config: Mapping[str, Any]) -> int:
    """Return the size of a head, which is the hidden size's share where nothing else is said."""
    return int(config.get("head_size") or config["hidden_size"] // config["num_attention_heads"])


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the block ``quantization``; without one nothing is quantized."""
    return config.get("quantization") or {}


def _frequencies(config: Mapping[str, Any], family: Family, base: float) -> Array:
    if not family.rotary:
        return np.zeros(0)
    rotated = int(head_size_of(config) * float(config.get("rotary_pct", 1.0)))
    base = float(config.get("rotary_emb_base", base))
    frequencies = inverse_frequencies(rotated, base, config.get("rotary_scaling"))
    factors = config.get("longrope_scaling_short_factors")
    return frequencies if factors is None else frequencies / np.asarray(factors, np.float64)


def _rotary_scale(config: Mapping[str, Any]) -> float:
    original, scaling = config.get("original_max_position_embeddings"), config.get("rotary_scaling")
    if "longrope_scaling_short_factors" in config and original is not None:
        return longrope_scale(float(config["max_position_embeddings"]), float(original))
    return yarn_scale(scaling) if scaling and scaling_kind(scaling) == "yarn" else 1.0


def _attention_scale(config: Mapping[str, Any], head_size: int) -> float:
    """Return what scores are multiplied with; Gemma 2 and 3 name the size that stands for the head's."""
    scalar = float(config.get("query_pre_attn_scalar") or head_size)
    return math.sqrt(1 / scalar) * float(config.get("attention_multiplier", 1.0))


def _window(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the window in tokens, and which n-th layers have none; one that no sequence exceeds is none."""
    window = config.get("sliding_window")
    if window is None:
        return None, None
    if type(window) is not int or window < 1:
        message = f"sliding_window is {window!r}, and has to be a number of tokens"
        raise StageError(message, hint="convert the model again with `trtkit convert`")
    longest, arch = config.get("max_position_embeddings"), ARCHITECTURES[config["architecture"]]
    if longest is not None and window >= int(longest):
        return None, None
    if arch.window is not Window.PATTERN:
        return window, None
    return window, int(config.get("sliding_window_pattern") or arch.window_pattern_default)
