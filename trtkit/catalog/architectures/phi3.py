"""Phi-3 and Phi-4: Llama with fused projections, LongRoPE, and sometimes heads that are rotated in part."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures.architecture import (
    Arrange,
    Dim,
    RopeType,
    Source,
    Split,
    TensorRule,
    Window,
)
from trtkit.catalog.architectures.fields import IGNORABLE, NEUTRAL
from trtkit.catalog.architectures.llama import LLAMA
from trtkit.catalog.model import ModelConfig

_HF = "model.layers.{layer}."
_TRT = "transformer.layers.{layer}."
_ORIGINAL = "original_max_position_embeddings"
_FACTORS = ("short_factor", "long_factor")


def _renamed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Say "longrope" where the first files say "su"."""
    blocks = {
        key: raw[key] for key in ("rope_scaling", "rope_parameters") if isinstance(raw.get(key), Mapping)
    }
    return {**raw, **{key: _long(block) for key, block in blocks.items()}}


def _long(block: Mapping[str, Any]) -> dict[str, Any]:
    return {**block, **{key: "longrope" for key in ("type", "rope_type") if block.get(key) == "su"}}


def _engine_config(config: ModelConfig) -> dict[str, Any]:
    """Return the keys of Phi3Config; the presence of LongRoPE's is what makes the engine use it."""
    # The class reads no rotary_scaling.
    common = {"rotary_pct": config.rotary_pct, "rotary_scaling": None}
    scaling = config.rotary_scaling
    if scaling is None:
        return {**common, "position_embedding_type": "rope_gpt_neox"}
    return {
        **common,
        "position_embedding_type": "long_rope",
        _ORIGINAL: scaling[_ORIGINAL],
        "longrope_scaling_short_factors": scaling["short_factor"],
        "longrope_scaling_long_factors": scaling["long_factor"],
    }


def _model_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    found = {"rotary_pct": content["rotary_pct"]}
    if "longrope_scaling_short_factors" not in content:
        return found
    scaling = {
        "type": "longrope",
        "rope_type": "longrope",
        "short_factor": content["longrope_scaling_short_factors"],
        "long_factor": content.get("longrope_scaling_long_factors"),
        _ORIGINAL: content.get(_ORIGINAL),
    }
    return {**found, "rotary_scaling": scaling}


_FUSED = (
    TensorRule(
        _TRT + "attention.qkv.weight",
        (Source(_HF + "self_attn.qkv_proj.weight", (Dim.QKV, Dim.HIDDEN)),),
        Split.QKV,
    ),
    # The activated half is the first one in the source, the second one in the engine.
    TensorRule(
        _TRT + "mlp.fc.weight",
        (Source(_HF + "mlp.gate_up_proj.weight", (Dim.GATE_UP, Dim.HIDDEN)),),
        Split.HALVES,
        arrange=Arrange.SWAPPED,
    ),
)
_REPLACED = (_TRT + "attention.qkv.", _TRT + "mlp.fc.", _TRT + "mlp.gate.")


def _is_kept(rule: TensorRule) -> bool:
    return not rule.target.startswith(_REPLACED) and not rule.target.endswith(".bias")


PHI3 = dataclasses.replace(
    LLAMA,
    name="Phi3ForCausalLM",
    keys={
        **LLAMA.keys,
        "head_size": (),
        "attn_bias": (),
        "mlp_bias": (),
        "rotary_pct": ("partial_rotary_factor", "rotary_pct"),
    },
    defaults={**LLAMA.defaults, "rotary_pct": 1.0},
    activations={"silu": "swiglu", "swish": "swiglu"},
    rope_types={
        "longrope": RopeType(
            (*_FACTORS, _ORIGINAL),
            ("factor", "attention_factor"),
            lists=_FACTORS,
            original_default=4096,
        )
    },
    neutral=NEUTRAL
    | {
        "attention_bias": (False,),
        "bias": (False,),
        "mlp_bias": (False,),
        "full_attn_mod": (1,),
        "interpolate_factor": (1,),
    },
    # The engine takes heads to be hidden_size / num_heads wide.
    restated={**LLAMA.restated, "head_dim": "head_size"},
    # The code that early files point to is what transformers has now.
    ignorable=IGNORABLE | {"auto_map"},
    adapt=_renamed,
    engine_config=_engine_config,
    engine_keys=("rotary_pct",),
    model_fields=_model_fields,
    tensors=(*filter(_is_kept, LLAMA.tensors), *_FUSED),
    window=Window.ALL_LAYERS,
    max_pp=1,
)
