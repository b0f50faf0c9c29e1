"""Speculative decoding: what each mode needs, and what it does not go with."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.trtllm import LINES, NEWEST, SPECULATION_SINCE
from trtkit.contract.models import Contract
from trtkit.contract.speculation import Speculation, SpeculationMode
from trtkit.errors import Problem
from trtkit.plan.builder_flags import MODES
from trtkit.plan.check import refuses, warns
from trtkit.plan.types import Basis, Plan

_KEY = "engine.speculation"
_EAGLE_BATCH, _EAGLE_DRAFT = 512, 256
_NEEDS = {
    SpeculationMode.DRAFT_TARGET: ("draft", "max_draft_tokens"),
    SpeculationMode.MEDUSA: ("checkpoint", "max_draft_tokens"),
    SpeculationMode.EAGLE: ("checkpoint", "max_draft_tokens"),
    SpeculationMode.LOOKAHEAD: ("lookahead",),
}
_HINTS = {
    "draft": "give the contract of a small model with the same vocabulary",
    "checkpoint": "give the TensorRT-LLM checkpoint that the reference converter made of model and heads",
    "max_draft_tokens": "give the most draft tokens of a step; usual are 4 to 10, 63 for heads",
    "lookahead": "give window, ngram and verification, for example 7 each",
}


@refuses
def speculation_has_its_backend(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """Elsewhere than in TensorRT-LLM the key would have no effect, and its PyTorch back end has no old heads."""
    backend, asked = contract.engine.backend.value, contract.engine.speculation
    if asked is None or backend == "tensorrt":
        return
    if backend != "llmapi":
        yield Problem(f"no draft tokens are built for back end {backend}", _KEY, "leave the key out")
    elif asked.mode is not SpeculationMode.DRAFT_TARGET:
        message = f"the PyTorch back end of TensorRT-LLM has no {asked.mode.value} of engines"
        yield Problem(message, _KEY, "use draft-target, or leave the key out")


@refuses
def speculation_is_complete(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """A mode without its model, heads or sizes cannot be built, and what it does not use would be ignored."""
    asked = contract.engine.speculation
    if asked is None:
        return
    if asked.mode.has_heads and contract.quantization.gate is not None:
        message = "the gate cannot run a checkpoint with heads"
        yield Problem(message, "quantization.gate", "judge the model without heads by `trtkit gate`")
    for key, hint in _HINTS.items():
        given = getattr(asked, key) is not None
        if given != (key in _NEEDS[asked.mode]):
            message = f"{asked.mode.value} has no use for it" if given else f"{asked.mode.value} needs it"
            yield Problem(message, f"{_KEY}.{key}", "leave the key out" if given else hint)
    if asked.mode is SpeculationMode.LOOKAHEAD and asked.lookahead and not asked.draft_tokens:
        message = "n-grams of one token leave nothing to guess: a step would have no draft tokens"
        yield Problem(message, f"{_KEY}.lookahead", _HINTS["lookahead"])
    if asked.choices is None:
        return
    if not asked.mode.has_heads:
        message = f"{asked.mode.value} has no tree of draft tokens"
        yield Problem(message, f"{_KEY}.choices", "leave the key out")
    elif len(asked.choices) > asked.draft_tokens > 0:
        message = f"{len(asked.choices)} paths are more than max_draft_tokens, {asked.draft_tokens}"
        yield Problem(
            message, f"{_KEY}.choices", "leave paths out, or use a checkpoint with more draft tokens"
        )


@refuses
def speculation_fits_engine(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Limits that the builder asserts after the checkpoint was read, and switches without which drafts are not read."""
    asked = contract.engine.speculation
    if asked is None or plan.target is None or contract.engine.backend.value != "tensorrt":
        return
    line, first = plan.target.trtllm or NEWEST, SPECULATION_SINCE.get(MODES[asked.mode], LINES[0])
    if LINES.index(line) < LINES.index(first):
        message = f"Triton's back end of TensorRT-LLM {line} has no {asked.mode.value} decoding"
        yield Problem(message, f"{_KEY}.mode", f"set engine.trtllm to {first} or later")
    if asked.mode is SpeculationMode.EAGLE:
        yield from _eagle(asked, plan)
    if asked.mode is SpeculationMode.MEDUSA and plan.target.max_beam_width > 1:
        yield Problem("Medusa has no beam search", _KEY, "set engine.limits.max_beam_width to 1")
    paged = plan.target.setting("use_paged_context_fmha")
    if asked.mode is SpeculationMode.DRAFT_TARGET and paged.effective != "enable":
        message = f"drafts of another model are read by paged context attention, which is off: {paged.reason}"
        yield Problem(
            message.removesuffix(": "), _KEY, "leave its flags alone, and use a KV cache that has it"
        )
    need = plan.limits.max_seq_len - 1
    whole = not plan.target.chunked_context and plan.limits.max_num_tokens < need
    if asked.mode is SpeculationMode.DRAFT_TARGET and whole:
        message = f"each round reads prompt and answer anew, up to {need} tokens, and a step takes"
        message += f" {plan.limits.max_num_tokens} without chunked context"
        hint = f"at least {need}, or engine.chunked_context: true"
        yield Problem(message, "engine.limits.max_num_tokens", hint)


@warns
def drafts_have_no_pace(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """How many drafts are accepted is a matter of the texts: nothing before a measurement says it."""
    if (
        contract.engine.speculation is not None
        and plan.pace is not None
        and plan.pace.basis is not Basis.MEASURED
    ):
        message = "the pace is that of one token a step: neither accepted drafts nor the time of drafting are counted"
        yield Problem(message, _KEY, "measure it: trtkit bench on the engine, then --calibration")


def _eagle(asked: Speculation, plan: Plan) -> Iterator[Problem]:
    if plan.limits.max_batch_size > _EAGLE_BATCH:
        message = f"EAGLE takes at most {_EAGLE_BATCH} requests"
        yield Problem(message, "engine.limits.max_batch_size", f"at most {_EAGLE_BATCH}")
    if asked.draft_tokens > _EAGLE_DRAFT:
        message = f"EAGLE takes at most {_EAGLE_DRAFT} draft tokens"
        yield Problem(message, f"{_KEY}.max_draft_tokens", f"at most {_EAGLE_DRAFT}")
    if plan.quantization.kv_cache == "int8":
        message = "EAGLE forces paged context attention, which does not read an INT8 KV cache"
        yield Problem(message, "quantization.kv_cache", "use auto or fp8")


SPECULATION_CHECKS = (
    speculation_has_its_backend,
    speculation_is_complete,
    speculation_fits_engine,
    drafts_have_no_pace,
)
