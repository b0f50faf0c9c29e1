"""The flags of ``trtllm-build`` that a contract comes to, beside the engine's shapes."""

from __future__ import annotations

from trtkit.contract.engine import Engine
from trtkit.contract.lora import Lora, LoraModule
from trtkit.contract.speculation import Speculation, SpeculationMode

FlagValue = bool | int | str
MODES = {
    SpeculationMode.DRAFT_TARGET: "draft_tokens_external",
    SpeculationMode.MEDUSA: "medusa",
    SpeculationMode.EAGLE: "eagle",
    SpeculationMode.LOOKAHEAD: "lookahead_decoding",
}
_QKV = (LoraModule.ATTN_Q, LoraModule.ATTN_K, LoraModule.ATTN_V)


def builder_flags(engine: Engine) -> dict[str, FlagValue]:
    """Return free flags, and those that speculation and adapters ask for."""
    flags = dict(engine.build_flags)
    if engine.speculation is not None:
        flags |= _speculation(engine.speculation)
    if engine.lora is not None:
        flags |= _lora(engine.lora)
    return flags


def _speculation(asked: Speculation) -> dict[str, FlagValue]:
    return {"speculative_decoding_mode": MODES[asked.mode], "max_draft_len": asked.draft_tokens}


def _lora(asked: Lora) -> dict[str, FlagValue]:
    """Return the flags; without modules the builder takes those of the first adapter."""
    flags: dict[str, FlagValue] = {"lora_plugin": "auto", "max_lora_rank": asked.max_rank}
    modules = list(dict.fromkeys(asked.modules))
    if modules:
        # The builder adds what is missing of the three by itself.
        modules += [each for each in _QKV if set(_QKV) & set(modules) and each not in modules]
        flags["lora_target_modules"] = " ".join(each.value for each in modules)
    return flags
