"""What TensorRT-LLM's builder makes of what it is given, simulated: it changes much of it without a word.

The order is that of ``commands/build.py``, ``builder.py`` and ``_common.py`` of the 1.x lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.trtllm import FLAGS
from trtkit.plan.types import EngineLimits, QuantPlan, Setting

FlagValue = bool | int | str
_ON, _OFF = "enable", "disable"
_FP8_CONTEXT = ("FP8", "W4A8_AWQ", "NVFP4")
"""Algorithms whose context attention can run in FP8."""
_FUSED_ACTIVATIONS = ("silu", "gelu")
_REDUCE_FUSION = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")
_CLASSES = {"medusa": "MedusaForCausalLM", "eagle": "EagleForCausalLM"}
"""Classes of models with heads, whatever the model is."""


@dataclass(frozen=True)
class Ask:
    """Everything that the builder decides by."""

    model: ModelConfig
    quantization: QuantPlan
    sm: int
    tp: int
    flags: Mapping[str, FlagValue]
    beams: int = 1

    def flag(self, name: str) -> FlagValue | None:
        """Return a flag as it was asked for: as given, or its default."""
        value: FlagValue | None = self.flags.get(name, FLAGS[name].default)
        return value

    def is_on(self, name: str) -> bool:
        """Return whether a switch is asked for."""
        return self.flag(name) == _ON


@dataclass(frozen=True)
class Effect:
    """What the engine will have."""

    limits: EngineLimits
    settings: tuple[Setting, ...]
    paged_context: bool
    """Blocks of the KV cache are readable in the context phase: what reuse and chunked context need."""


def build_effect(ask: Ask, limits: EngineLimits) -> Effect:
    """Return the builder's outcome, with a reason for each value that is not what was asked for."""
    limits, changed = _limits(ask, limits)
    attention = attention_settings(ask)
    paged = next(each for each in attention if each.name == "use_paged_context_fmha")
    settings = (*changed, *attention, *_fusions(ask))
    return Effect(limits, settings, paged.effective == _ON and ask.flag("kv_cache_type") == "paged")


def attention_settings(ask: Ask) -> tuple[Setting, ...]:
    """Return the context attention's three switches, by the first row of the builder's table that fits."""
    quantization = ask.quantization
    kv = quantization.kv_cache_quant_algo
    paged, fp8 = ask.is_on("use_paged_context_fmha"), ask.is_on("use_fp8_context_fmha")
    why_paged = why_fp8 = ""
    if ask.is_on("streamingllm"):
        paged, why_paged = False, "StreamingLLM has no paged context attention"
    if not ask.is_on("context_fmha"):
        paged, fp8, why_paged = False, False, "context_fmha is off"
        why_fp8 = why_paged
    elif quantization.quant_algo not in _FP8_CONTEXT or ask.sm < 89:
        plain = quantization.quant_algo is None
        place = f"SM {ask.sm}" if ask.sm < 89 else f"{'plain' if plain else quantization.weights} weights"
        fp8, why_fp8 = False, f"FP8 attention does not go with {place}"
        if kv == "FP8":
            paged, why_paged = False, f"an FP8 KV cache is not read in the context phase with {place}"
    elif paged and kv != "FP8":
        fp8, why_fp8 = False, "the KV cache is not FP8"
    elif paged and not fp8:
        fp8, why_fp8 = True, "paged context attention on an FP8 KV cache runs in FP8"
    if kv == "INT8" and paged:
        paged, why_paged = False, "an INT8 KV cache is not read in the context phase"
    if ask.flag("speculative_decoding_mode") == "eagle":
        paged, why_paged = True, "EAGLE needs paged context attention"
    return (
        _switch(ask, "context_fmha", ask.is_on("context_fmha"), ""),
        _switch(ask, "use_paged_context_fmha", paged, why_paged),
        _switch(ask, "use_fp8_context_fmha", fp8, why_fp8),
    )


def _limits(ask: Ask, limits: EngineLimits) -> tuple[EngineLimits, list[Setting]]:
    changed: list[Setting] = []

    def become(name: str, value: int, reason: str) -> None:
        nonlocal limits
        old = getattr(limits, name)
        if value != old:
            changed.append(Setting(name, str(old), str(value), reason))
            limits = replace(limits, **{name: value})

    draft = int(ask.flag("max_draft_len") or 0)
    most = limits.max_seq_len * limits.max_batch_size
    least, why = limits.tokens_per_block, "a step is at least one block"
    if not ask.is_on("context_fmha"):
        least, why = limits.max_input_len, "context_fmha is off"
    if not ask.is_on("remove_input_padding"):
        become("max_num_tokens", most, "with padding kept every request takes max_seq_len")
    else:
        become(
            "max_num_tokens", min(limits.max_num_tokens, most), "no step can have more: sequences x length"
        )
        become("max_num_tokens", max(limits.max_num_tokens, least), why)
    if ask.flag("speculative_decoding_mode") is not None:
        length = limits.max_seq_len
        reason = "draft tokens need places of their own; a request has as many as before"
        if ask.flag("speculative_decoding_mode") == "eagle":
            reason += "; EAGLE takes one more for each of its layers, as the checkpoint has them"
        changed.append(Setting("max_seq_len", str(length), str(length + draft), reason))
        tokens = max(limits.max_num_tokens, limits.max_batch_size * (draft + 1))
        become("max_num_tokens", tokens, "every request takes its draft tokens and one more")
    # It is given these limits, and looks at drafts last.
    before_drafts = max(min(limits.max_num_tokens, most), least)
    return limits, [*changed, _opt_num_tokens(ask, replace(limits, max_num_tokens=before_drafts))]


def _opt_num_tokens(ask: Ask, limits: EngineLimits) -> Setting:
    asked = ask.flag("opt_num_tokens")
    wanted = limits.max_batch_size * ask.beams if asked is None else int(asked)
    value = min(wanted, limits.max_num_tokens)
    reason = "sequences x beams" if asked is None else ""
    if value < wanted:
        reason = "clipped to max_num_tokens"
    return Setting("opt_num_tokens", "auto" if asked is None else str(asked), str(value), reason)


def _fusions(ask: Ask) -> list[Setting]:
    algo = ask.quantization.quant_algo
    architecture = _CLASSES.get(str(ask.flag("speculative_decoding_mode")), ask.model.architecture)
    reduce = ask.tp > 1 and architecture in _REDUCE_FUSION
    fused, why = True, ""
    if ask.model.hidden_act not in _FUSED_ACTIVATIONS or ask.model.moe is not None:
        fused, why = (
            False,
            f"only gated MLPs with silu or gelu are fused, this one has {ask.model.hidden_act}",
        )
    elif algo not in (None, "FP8"):
        fused, why = False, f"only FP8 and plain MLPs are fused, not {ask.quantization.weights}"
    settings = [
        _switch(ask, "use_fused_mlp", fused and ask.is_on("use_fused_mlp"), why),
        _switch(
            ask,
            "reduce_fusion",
            reduce and ask.is_on("reduce_fusion"),
            "it needs tp > 1 and Llama's or Gemma 2's layers",
        ),
        _switch(
            ask,
            "user_buffer",
            reduce and ask.is_on("user_buffer") and ask.is_on("reduce_fusion") and algo == "FP8",
            "it needs reduce_fusion and FP8 Llama layers",
        ),
        _switch(ask, "norm_quant_fusion", False, "it needs NVFP4 weights"),
    ]
    return [each for each in settings if each.asked != _OFF]


def _switch(ask: Ask, name: str, on: bool, reason: str) -> Setting:
    asked, effective = str(ask.flag(name)), _ON if on else _OFF
    return Setting(name, asked, effective, reason if asked != effective else "")
