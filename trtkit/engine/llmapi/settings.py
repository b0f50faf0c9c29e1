"""The arguments of ``tensorrt_llm.LLM``: what a plan comes to on the PyTorch back end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtkit.catalog.llmapi import ARGS, BLOCK_TOKENS
from trtkit.catalog.parallel import GPUS_PER_NODE
from trtkit.catalog.trtllm import LINES, NEWEST
from trtkit.errors import InputError
from trtkit.plan.types import Plan, Target


def llm_settings(plan: Plan, *, model: str, draft: str | None = None) -> dict[str, Any]:
    """Return the arguments; ``model`` and ``draft`` are folders where the server sees them.

    Raises:
        InputError: The release line does not take one of them.
    """
    target, limits = plan.target, plan.limits
    if target is None:
        raise InputError("TensorRT-LLM's Python API needs a GPU", hint="set engine.gpu")
    settings: dict[str, Any] = {
        "model": model,
        "backend": "pytorch",
        "dtype": plan.dtype,
        "tensor_parallel_size": target.ranks.tp,
        "pipeline_parallel_size": target.ranks.pp,
        **({"gpus_per_node": gpus} if (gpus := target.ranks.gpus_per_node) != GPUS_PER_NODE else {}),
        **({"moe_expert_parallel_size": target.ranks.moe_ep} if target.ranks.moe_ep > 1 else {}),
        "max_batch_size": limits.max_batch_size,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_seq_len,
        "max_num_tokens": limits.max_num_tokens,
        "enable_chunked_prefill": target.chunked_context,
        "kv_cache_config": _kv_cache(plan, target),
        **({"speculative_config": _speculation(target, draft)} if draft else {}),
    }
    check_settings(settings, target.trtllm or NEWEST)
    return settings


def check_settings(settings: Mapping[str, Any], line: str) -> None:
    """Refuse arguments that a release line does not have: it would end with an error of pydantic.

    Raises:
        InputError: It lacks one; all are named.
    """
    if unknown := list(_unknown(settings, line)):
        message = f"LLM() of TensorRT-LLM {line} has no {', '.join(unknown)}"
        raise InputError(message, hint="take a later engine.trtllm, or leave out what asks for it")


def _unknown(settings: Mapping[str, Any], line: str) -> Iterator[str]:
    for section, known in ARGS.items():
        given = settings.get(section, {}) if section else settings
        for name in given:
            if name not in known or LINES.index(line) < LINES.index(known[name]):
                yield f"{section}.{name}" if section else name


def _kv_cache(plan: Plan, target: Target) -> dict[str, Any]:
    block = plan.limits.tokens_per_block
    return {
        # The smaller of the two counts, and LLM() has a fraction of its own where none is given.
        "max_tokens": plan.memory.kv_tokens,
        "free_gpu_memory_fraction": target.memory_fraction,
        "enable_block_reuse": plan.enable_block_reuse,
        # auto takes what the checkpoint says.
        "dtype": plan.quantization.kv_cache,
        **({"tokens_per_block": block} if block != BLOCK_TOKENS else {}),
        **({"max_attention_window": list(windows)} if (windows := target.max_attention_window) else {}),
    }


def _speculation(target: Target, draft: str) -> dict[str, Any]:
    length = int(target.build_flags["max_draft_len"])
    return {"decoding_type": "Draft_Target", "max_draft_len": length, "speculative_model_dir": draft}
