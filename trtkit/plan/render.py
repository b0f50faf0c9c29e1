"""The plan as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtkit.plan.compare import Candidate
from trtkit.plan.solve import Solution
from trtkit.plan.types import ClassPace, Pace, Plan, Setting, Target

_Rows = Sequence[tuple[str, str]]


def render(plan: Plan) -> str:
    """Return the plan as aligned text, one fact a line."""
    lines = []
    for title, rows in _sections(plan):
        lines += [title, *(f"  {name:<24}{value}" for name, value in rows)]
    return "\n".join(lines)


def render_solution(solution: Solution) -> str:
    """Return the answer in one line."""
    return f"{solution.unknown.value} = {solution.value}: {solution.meaning}"


def render_candidates(candidates: Sequence[Candidate], limit: int = 20) -> str:
    """Return the candidates as a table with bars, best first."""
    rows = candidates[:limit]
    if not rows:
        return "nothing in the catalog fits"
    most = max(each.per_gpu for each in rows) or 1.0
    head = (
        f"{'GPU':<14}{'weights':<13}{'KV':<6}{'tp':>2} {'GB':>6}{'KV tokens':>11}{'slots':>6}"
        f"{'TTFT ms':>9}{'TPOT ms':>9}{'req/s':>8}{'per GPU':>9}  promises"
    )
    return "\n".join([head, *(_candidate(each, most) for each in rows), "", *_notes(rows)])


def _candidate(each: Candidate, most: float) -> str:
    plan, pace = each.plan, each.plan.pace if each.plan else None
    if plan is None or pace is None:
        return f"{each.gpu.name:<14}{each.weights:<13}{each.kv_cache:<6}{each.tp:>2} {each.why_not}"
    memory = plan.memory
    used = (memory.weights_bytes + memory.activation_bytes + memory.overhead_bytes) / 1e9
    ttft, tpot = max(each.ttft_ms for each in pace.classes), max(each.tpot_ms for each in pace.classes)
    bar = "#" * round(12 * each.per_gpu / most)
    promised = any(row.promised_ttft_ms or row.promised_tpot_ms for row in pace.classes)
    word = ("kept" if each.kept else "broken") if promised else "none"
    word += "" if each.proven else ", not proven"
    return (
        f"{each.gpu.name:<14}{each.weights:<13}{each.kv_cache:<6}{each.tp:>2} {used:>6.1f}{memory.kv_tokens:>11,}"
        f"{plan.zones.decode_slots:>6}{ttft:>9.0f}{tpot:>9.1f}{each.requests_per_s:>8.1f}{each.per_gpu:>9.2f}"
        f"  {word:<8}{bar}"
    )


def _notes(rows: Sequence[Candidate]) -> list[str]:
    """Say what the numbers are of and where they come from."""
    paces = [each.plan.pace for each in rows if each.plan and each.plan.pace]
    if not paces:
        return []
    work = paces[0].workload
    kinds = sorted({pace.source.partition(" x ")[0] for pace in paces})
    return [
        f"prompts of {work.prompt_tokens} tokens, answers of {work.output_tokens}; GB: on each GPU beside the pool",
        f"estimates, not measurements: {'; '.join(kinds)}",
    ]


def _sections(plan: Plan) -> Iterator[tuple[str, _Rows]]:
    limits, memory, zones = plan.limits, plan.memory, plan.zones
    yield "model", _model(plan)
    if plan.target:
        yield "target", _target(plan.target)
    yield (
        "limits",
        [
            ("max_batch_size", f"{limits.max_batch_size} requests"),
            ("max_input_len", f"{limits.max_input_len} tokens"),
            ("max_seq_len", f"{limits.max_seq_len} tokens"),
            ("max_num_tokens", f"{limits.max_num_tokens} tokens per step"),
        ],
    )
    if plan.target and plan.target.settings:
        yield "effective settings", [(each.name, _setting(each)) for each in plan.target.settings]
    yield "memory" if plan.target is None else "memory (each GPU)", _memory(plan)
    slots = f"{zones.decode_slots} requests"
    if plan.pace and zones.decode_slots < limits.max_batch_size:
        slots += f" of {limits.max_batch_size}: more would break a TPOT promise"
    yield (
        "zones (what the proxy lets in flight)",
        [
            ("prefill", f"{zones.prefill_tokens} prompt tokens"),
            ("KV", f"{zones.kv_tokens} tokens of the pool's {memory.kv_tokens}"),
            ("decode", slots),
        ],
    )
    if plan.pace:
        yield f"pace (an estimate: {plan.pace.source})", _pace(plan.pace)


def _model(plan: Plan) -> _Rows:
    model = plan.model
    return [
        ("name", plan.name),
        ("architecture", model.architecture),
        ("layers x hidden", f"{model.num_layers} x {model.hidden_size}"),
        ("heads / KV heads", f"{model.num_heads} / {model.num_kv_heads} of {model.head_size}"),
        ("weights", f"{plan.quantization.weights} ({plan.quantization.quant_algo or plan.dtype})"),
        ("KV cache", plan.quantization.kv_cache),
        ("back end", plan.backend + (f", {plan.threads} threads" if plan.threads else "")),
    ]


def _target(target: Target) -> _Rows:
    gpu, ranks = target.gpu, target.ranks
    division = f"tensor {ranks.tp} x pipeline {ranks.pp}" + (
        f", experts {ranks.moe_ep}" if ranks.moe_ep > 1 else ""
    )
    rows = [
        (
            "GPU",
            f"{ranks.world} x {gpu.title} (SM {gpu.sm}, {gpu.memory_mib:,} MiB, {gpu.bandwidth_gb_per_s:g} GB/s)",
        ),
        ("ranks", division),
    ]
    if target.trtllm:
        rows.append(("TensorRT-LLM", f"{target.trtllm} ({target.image})"))
    if target.max_attention_window:
        rows.append(("max_attention_window", str(list(target.max_attention_window))))
    return rows


def _setting(each: Setting) -> str:
    changed = each.effective if each.asked == each.effective else f"{each.effective} (asked: {each.asked})"
    return f"{changed}  {each.reason}" if each.reason else changed


def _memory(plan: Plan) -> _Rows:
    memory = plan.memory
    available = "unknown" if memory.available_bytes is None else _mb(memory.available_bytes)
    return [
        ("weights", _mb(memory.weights_bytes)),
        ("step buffers", _mb(memory.activation_bytes)),
        ("runtime", _mb(memory.overhead_bytes)),
        ("KV per token", f"{memory.kv_bytes_per_token:,} B"),
        ("KV pool", f"{memory.kv_tokens} tokens = {memory.kv_blocks} blocks = {_mb(memory.kv_pool_bytes)}"),
        ("available", available),
    ]


def _pace(pace: Pace) -> _Rows:
    work = pace.workload
    rows = [
        ("request", f"{work.prompt_tokens} prompt tokens, {work.output_tokens} of answer"),
        ("prefill", f"{pace.prefill_tokens_per_s:,.0f} tokens/s"),
        ("step", f"{pace.step_ms:.1f} ms with {pace.batch} requests"),
        ("throughput", f"{pace.requests_per_s:.1f} requests/s"),
    ]
    return [*rows, *((f"class {each.name}", _promises(each)) for each in pace.classes)]


def _promises(each: ClassPace) -> str:
    ttft = _of("TTFT", each.ttft_ms, each.promised_ttft_ms)
    return f"{ttft}, {_of('TPOT', each.tpot_ms, each.promised_tpot_ms)}"


def _of(what: str, value_ms: float, promised_ms: float | None) -> str:
    promise = "" if promised_ms is None else f" of {promised_ms:g}"
    return f"{what} {value_ms:.3g}{promise} ms"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
