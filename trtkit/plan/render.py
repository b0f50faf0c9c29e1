"""The plan as a person reads it."""

from __future__ import annotations

from trtkit.plan.types import Plan


def render(plan: Plan) -> str:
    """Return the plan as aligned text, one fact a line."""
    limits, memory, zones, model = plan.limits, plan.memory, plan.zones, plan.model
    available = "unknown" if memory.available_bytes is None else _mb(memory.available_bytes)
    sections = {
        "model": [
            ("name", plan.name),
            ("architecture", model.architecture),
            ("layers x hidden", f"{model.num_layers} x {model.hidden_size}"),
            ("heads / KV heads", f"{model.num_heads} / {model.num_kv_heads} of {model.head_size}"),
            ("weights", f"{plan.quantization.weights} ({plan.quantization.quant_algo or plan.dtype})"),
            ("back end", plan.backend + (f", {plan.threads} threads" if plan.threads else "")),
        ],
        "limits": [
            ("max_batch_size", f"{limits.max_batch_size} requests"),
            ("max_input_len", f"{limits.max_input_len} tokens"),
            ("max_seq_len", f"{limits.max_seq_len} tokens"),
            ("max_num_tokens", f"{limits.max_num_tokens} tokens per step"),
        ],
        "memory": [
            ("weights", _mb(memory.weights_bytes)),
            ("step buffers", _mb(memory.activation_bytes)),
            ("runtime", _mb(memory.overhead_bytes)),
            ("KV per token", f"{memory.kv_bytes_per_token:,} B"),
            (
                "KV pool",
                f"{memory.kv_tokens} tokens = {memory.kv_blocks} blocks = {_mb(memory.kv_pool_bytes)}",
            ),
            ("available", available),
        ],
        "zones (what the proxy lets in flight)": [
            ("prefill", f"{zones.prefill_tokens} prompt tokens"),
            ("KV", f"{zones.kv_tokens} tokens"),
            ("decode", f"{zones.decode_slots} requests"),
        ],
    }
    lines = []
    for title, rows in sections.items():
        lines += [title, *(f"  {name:<18}{value}" for name, value in rows)]
    return "\n".join(lines)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
