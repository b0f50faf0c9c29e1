"""Which fields of a plan change the bytes of which stage's product, and what the contract calls them.

A field that no row names is taken for a part of every key: building too often is slow, serving a stale engine is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from trtkit.plan.types import Plan

CONVERT, COMPILE, REPO = "convert", "compile", "repo"
STAGES = (CONVERT, COMPILE, REPO)


@dataclass(frozen=True)
class Row:
    """One field of the plan, or all fields of one that is only passed on."""

    path: str
    word: str
    """The contract's key for it."""
    stages: tuple[str, ...] = ()
    """Stages that take it directly; each stage also takes the key of the one before it."""
    why_not: str = ""
    """Why no stage takes it."""


def _none(prefix: str, names: str, word: str, why_not: str) -> tuple[Row, ...]:
    return tuple(Row(prefix + name, word, why_not=why_not) for name in names.split())


_RANKS, _ENGINE, _SHAPES, _KV = (CONVERT, COMPILE), (COMPILE,), "engine.limits.", "engine.kv_cache."
ROWS: tuple[Row, ...] = (
    Row("name", "name", why_not="a name changes no byte"),
    Row("backend", "engine.backend", (COMPILE, REPO)),
    Row("gpu", "engine.gpu", _ENGINE),
    Row("tensor_parallel", "engine.tensor_parallel", _RANKS),
    Row("pipeline_parallel", "engine.pipeline_parallel", _RANKS),
    Row("threads", "engine.threads", _ENGINE),
    Row("dtype", "model.dtype", (CONVERT,)),
    Row("model.eos_token_ids", "model.source", (REPO,)),
    Row("model.pad_token_id", "model.source", (REPO,)),
    Row("model", "model.source", why_not="read from config.json, which is a part of the key itself"),
    Row("quantization.weights", "quantization.weights", (CONVERT,)),
    Row("quantization.kv_cache", "quantization.kv_cache", (CONVERT,)),
    Row("quantization.quant_algo", "quantization.weights", (CONVERT,)),
    Row("quantization.kv_cache_quant_algo", "quantization.kv_cache", (CONVERT,)),
    Row("quantization.smoothquant", "quantization.smoothquant", (CONVERT,)),
    Row("quantization.alpha", "quantization.alpha", (CONVERT,)),
    Row(
        "quantization.group_size",
        "quantization.group_size",
        why_not="the calibration's, whose key conversion has",
    ),
    Row("quantization.kv_scale", "quantization.kv_scale", (CONVERT,)),
    Row("quantization.exclude", "quantization.exclude", (CONVERT,)),
    Row("quantization.overrides", "quantization.overrides", (CONVERT,)),
    Row("limits.max_batch_size", _SHAPES + "max_batch_size", (COMPILE, REPO)),
    Row("limits.max_input_len", _SHAPES + "max_input_len", _ENGINE),
    Row("limits.max_seq_len", _SHAPES + "max_seq_len", _ENGINE),
    Row("limits.max_num_tokens", _SHAPES + "max_num_tokens", _ENGINE),
    Row("limits.tokens_per_block", _KV + "tokens_per_block", _ENGINE),
    Row("memory.kv_blocks", "engine.kv_cache (blocks of the pool)", _ENGINE),
    Row("memory.kv_tokens", "engine.kv_cache (tokens of the pool)", (REPO,)),
    *_none(
        "memory.",
        "weights_bytes activation_bytes kv_bytes_per_token available_bytes overhead_bytes",
        "engine.kv_cache",
        "an estimate; the pool that follows from it is a key",
    ),
    *_none(
        "zones.",
        "prefill_tokens kv_tokens decode_slots window_tokens window_share",
        "admission",
        "the proxy's own, read from the plan",
    ),
    Row("enable_block_reuse", _KV + "enable_block_reuse", (COMPILE, REPO)),
    Row("target.gpu.name", "engine.gpu", _ENGINE),
    Row("target.gpu.sm", "engine.gpu (compute capability)", _ENGINE),
    Row("target.sms", "engine.targets", _ENGINE),
    Row("target.gpu", "engine.gpu", why_not="rates and sizes of the catalog change plans, not engines"),
    Row("target.ranks.tp", "engine.tensor_parallel", STAGES),
    Row("target.ranks.pp", "engine.pipeline_parallel", STAGES),
    Row("target.ranks.gpus_per_node", "engine.gpus_per_node", _RANKS),
    Row("target.ranks.moe_ep", "engine.moe_expert_parallel", _RANKS),
    Row("target.ranks.parallel_embedding", "engine.tensor_parallel", _RANKS),
    Row("target.trtllm", "engine.trtllm", (COMPILE, REPO)),
    Row("target.image", "engine.trtllm (image)", _ENGINE),
    Row("target.max_beam_width", _SHAPES + "max_beam_width", (COMPILE, REPO)),
    Row("target.build_flags", "engine.build_flags", (COMPILE, REPO)),
    Row("target.chunked_context", "engine.chunked_context", (REPO,)),
    Row("target.max_attention_window", "model.source (attention windows)", (REPO,)),
    Row("target.lookahead", "engine.speculation.lookahead", (REPO,)),
    Row("target.gpu_weights_fraction", "engine.gpu_weights_fraction", (REPO,)),
    Row("target.memory_fraction", "engine.kv_cache.memory_fraction", (REPO,)),
    Row("target.choices", "engine.speculation.choices", (REPO,)),
    Row("target.settings", "engine.build_flags", why_not="what the builder makes of flags that are keys"),
    Row("pace", "engine", why_not="foreseen speed, of which nothing is built"),
    Row("origins", "", why_not="said to a person"),
    Row("warnings", "", why_not="said to a person"),
)


def plan_inputs(plan: Plan, stage: str) -> dict[str, Any]:
    """Return the plan's part of a stage's inputs, by dotted path."""
    return {path: value for path, value in leaves(plan) if _is_key(path, value, stage)}


def contract_word(path: str) -> str:
    """Return what the contract calls a field of the plan; the path itself for one that has no word."""
    row = row_of(path)
    below = path.removeprefix(row.path) if row else ""
    if row is None:
        return path
    return f"{row.word} ({below.removeprefix('.')})" if below else row.word


def row_of(path: str) -> Row | None:
    """Return the most exact row for a field."""
    rows = [row for row in ROWS if path == row.path or path.startswith(f"{row.path}.")]
    return max(rows, key=lambda row: len(row.path), default=None)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested dataclasses with its dotted path."""
    if not is_dataclass(value):
        yield path, value
        return
    for each in fields(value):
        yield from leaves(getattr(value, each.name), f"{path}.{each.name}" if path else each.name)


def _is_key(path: str, value: Any, stage: str) -> bool:
    row = row_of(path)
    if row is None:
        absent = value is None and any(each.path.startswith(f"{path}.") for each in ROWS)
        return not absent
    return stage in row.stages
