"""Gemma 1, 2 and 3 (text): Llama with norms around 0, a scaled embedding, and soft caps or local layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures.architecture import Dim, Numeric, TensorRule, When, Window
from trtkit.catalog.architectures.fields import IGNORABLE, NEUTRAL
from trtkit.catalog.architectures.llama import LLAMA
from trtkit.catalog.architectures.rules import rms_norm

_HF = "model.layers.{layer}."
_TRT = "transformer.layers.{layer}."
_LOCAL = "rope_parameters.sliding_attention."
_FLAT = "rope_parameters."
_GEMMA2_WINDOW = 4096
_TANH = "gelu_pytorch_tanh"


def _centred(rule: TensorRule) -> TensorRule:
    """Store 1 + w where the source has the w of ``x * (1 + w)``."""
    is_norm = rule.target.endswith(("norm.weight", "ln_f.weight"))
    return dataclasses.replace(rule, plus=1.0) if is_norm else rule


def _gelu(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the "gelu" of early files where they name the tanh form, which every Gemma was trained with, beside it."""
    names = ("hidden_act", "hidden_activation")
    gelus = [key for key in names if raw.get(key) == "gelu"]
    return {key: raw[key] for key in raw if key not in gelus or not any(raw.get(n) == _TANH for n in names)}


def _gemma2(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Add the caps that the absence of a key stands for (null stands for none), and say the window once."""
    window = raw.get("sliding_window", _GEMMA2_WINDOW)
    rest = {key: raw[key] for key in raw if key != "sliding_window_size" or raw[key] != window}
    return {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, **_gelu(rest)}


def _gemma3(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Take apart rotary parameters that transformers 5 keeps for each kind of layers; beside them it reads none."""
    raw = _gelu(raw)
    block = raw.get("rope_parameters")
    if not isinstance(block, Mapping):
        return raw
    whole, local = (block.get(kind) for kind in ("full_attention", "sliding_attention"))
    if not (isinstance(whole, Mapping) and isinstance(local, Mapping)):
        rest = {key: value for key, value in block.items() if key != "rope_theta"}
        return {**raw, _FLAT + "rope_theta": block.get("rope_theta"), "rope_parameters": rest}
    flat = {_FLAT + key: value for key, value in block.items() if not isinstance(value, Mapping)}
    flat |= {_LOCAL + key: value for key, value in local.items()}
    return {**raw, **flat, "rope_parameters": whole}


GEMMA = dataclasses.replace(
    LLAMA,
    name="GemmaForCausalLM",
    keys={
        **LLAMA.keys,
        "hidden_act": ("hidden_activation", "hidden_act"),
        "attn_bias": ("attention_bias",),
        "mlp_bias": (),
    },
    # Without the key transformers assumes 4 or 16 KV heads here, whatever the number of heads: ask instead.
    defaults={key: value for key, value in LLAMA.defaults.items() if key != "num_kv_heads"}
    | {"head_size": 256, "hidden_act": _TANH, "tie_word_embeddings": True},
    activations={_TANH: _TANH, "gelu": _TANH},
    neutral=NEUTRAL | {"bias": (False,), "mlp_bias": (False,), "use_sliding_window": (True,)},
    ignorable=(IGNORABLE | {"cache_implementation"}) - {"use_sliding_window"},
    adapt=_gelu,
    tensors=tuple(_centred(rule) for rule in LLAMA.tensors if rule.when is not When.MLP_BIAS),
    shares_embedding=True,
    pads_vocab=False,
)

_GEMMA2_TENSORS = (
    *GEMMA.tensors,
    _centred(rms_norm(_TRT + "pre_feedforward_layernorm", _HF + "pre_feedforward_layernorm")),
    _centred(rms_norm(_TRT + "post_feedforward_layernorm", _HF + "post_feedforward_layernorm")),
)
_GEMMA3_TENSORS = (
    *_GEMMA2_TENSORS,
    _centred(rms_norm(_TRT + "attention.q_layernorm", _HF + "self_attn.q_norm", Dim.HEAD)),
    _centred(rms_norm(_TRT + "attention.k_layernorm", _HF + "self_attn.k_norm", Dim.HEAD)),
)

GEMMA2 = dataclasses.replace(
    GEMMA,
    name="Gemma2ForCausalLM",
    numerics={
        "query_pre_attn_scalar": Numeric(("query_pre_attn_scalar",)),
        "attn_logit_softcapping": Numeric(("attn_logit_softcapping",), None),
        "final_logit_softcapping": Numeric(("final_logit_softcapping",), None),
    },
    neutral={**GEMMA.neutral, "sliding_window_size": ()},
    adapt=_gemma2,
    tensors=_GEMMA2_TENSORS,
    window=Window.PATTERN,
    sliding_window_default=_GEMMA2_WINDOW,
    window_pattern_default=2,
)

_PATTERN = Numeric(("_sliding_window_pattern", "sliding_window_pattern"), 6, int)

GEMMA3 = dataclasses.replace(
    GEMMA,
    name="Gemma3ForCausalLM",
    defaults={**GEMMA.defaults, "rotary_base": 1_000_000.0},
    numerics={
        "query_pre_attn_scalar": Numeric(("query_pre_attn_scalar",)),
        "final_logit_softcapping": Numeric(("final_logit_softcapping",), None),
        "rope_local_base_freq": Numeric(("rope_local_base_freq", _LOCAL + "rope_theta"), 10_000.0),
        "sliding_window": Numeric(("sliding_window",), kind=int),
        # Both chooses between the rotary tables: older loaders read one name, newer ones the other.
        "sliding_window_pattern": _PATTERN,
        "_sliding_window_pattern": _PATTERN,
    },
    # The engine scales the table of local layers by the factor of the global ones: no scaling comes out right.
    rope_types={},
    neutral={
        **GEMMA.neutral,
        _LOCAL + "rope_type": ("default",),
        _LOCAL + "type": ("default",),
        _LOCAL + "partial_rotary_factor": (1,),
        _FLAT + "rope_type": ("default",),
        _FLAT + "type": ("default",),
    },
    restated={**GEMMA.restated, _FLAT + "rope_theta": "rotary_base"},
    adapt=_gemma3,
    tensors=_GEMMA3_TENSORS,
    window=Window.PATTERN,
    window_pattern_default=6,
)

GEMMA3_WRAPPER_HINT = (
    "extract the text model: text_config as config.json with architectures [Gemma3ForCausalLM], and the tensors "
    "under language_model without that prefix (if its rope_scaling is set, it cannot be converted either)"
)
