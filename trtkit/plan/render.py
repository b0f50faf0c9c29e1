"""The plan as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtkit.plan.compare import Candidate
from trtkit.plan.solve import Solution
from trtkit.plan.types import Basis, ClassPace, Pace, Plan, Setting, Target

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
        return "nothing that was tried fits"
    most = max(each.per_gpu for each in rows) or 1.0
    head = (
        f"{'GPU':<14}{'weights':<13}{'KV':<6}{'tp x pp':>7}{'GB':>7}{'KV tokens':>11}{'slots':>6}"
        f"{'TTFT ms':>9}{'TPOT ms':>9}{'most/s':>8}{'kept/s':>8}{'per GPU':>9}  {'known from':<11}promises"
    )
    return "\n".join([head, *(_candidate(each, most) for each in rows), "", *_notes(rows)])


def _candidate(each: Candidate, most: float) -> str:
    plan, pace = each.plan, each.plan.pace if each.plan else None
    if plan is None or pace is None:
        return f"{each.gpu.name:<14}{each.weights:<13}{each.kv_cache:<6}{_ranks(each):>7} {each.why_not}"
    memory = plan.memory
    used = (memory.weights_bytes + memory.activation_bytes + memory.overhead_bytes) / 1e9
    ttft, tpot = max(each.ttft_ms for each in pace.classes), max(each.tpot_ms for each in pace.classes)
    kept = "-" if pace.kept_requests_per_s is None else f"{pace.kept_requests_per_s:.1f}"
    bar = "#" * round(12 * each.per_gpu / most)
    promised = any(row.promises for row in pace.classes)
    word = ("kept" if each.kept else "broken") if promised else "none"
    word += "" if each.proven else ", not proven"
    return (
        f"{each.gpu.name:<14}{each.weights:<13}{each.kv_cache:<6}{_ranks(each):>7}{used:>7.1f}{memory.kv_tokens:>11,}"
        f"{plan.zones.decode_slots:>6}{ttft:>9.0f}{tpot:>9.1f}{pace.requests_per_s:>8.1f}{kept:>8}{each.per_gpu:>9.2f}"
        f"  {each.basis.value:<11}{word:<8}{bar}"
    )


def _ranks(each: Candidate) -> str:
    return f"{each.tp} x {each.pp}"


def _notes(rows: Sequence[Candidate]) -> list[str]:
    """Say what the numbers are of and where they come from."""
    plans = [each.plan for each in rows if each.plan]
    paces = [plan.pace for plan in plans if plan.pace]
    if not paces:
        return []
    work, prompts = paces[0].workload, {each.prompt_tokens for pace in paces for each in pace.classes}
    kinds = "; ".join(sorted({pace.source.partition(" x ")[0] for pace in paces}))
    longest = "" if prompts == {work.prompt_tokens} else ", of the longest prompt of its class"
    notes = [
        f"prompts of {work.prompt_tokens} tokens, answers of {work.output_tokens}; TTFT: without waiting{longest}",
        "most/s: with no slot ever free; kept/s: what may come at random so that promises are kept, waiting included",
        "per GPU: of kept/s, else of most/s; GB: on each GPU beside the pool",
        "guess: a share of the data sheet taken from another format or GPU",
        f"estimates for the {plans[0].backend} back end, not measurements: {kinds}",
    ]
    without = sorted({each.gpu.name for each in rows if each.kv_cache != each.kv_asked})
    if without:
        notes.append(f"{', '.join(without)}: no {rows[0].kv_asked} KV cache there, auto is taken")
    if rows[0].moe_ep > 1:
        notes.append(f"experts spread over {rows[0].moe_ep} groups, as the contract has it")
    return notes


def _sections(plan: Plan) -> Iterator[tuple[str, _Rows]]:
    limits = plan.limits
    yield "model", _model(plan)
    if plan.target:
        yield "target", _target(plan.target, _origin(plan, "trtllm"))
    yield (
        "limits",
        [
            ("max_batch_size", f"{limits.max_batch_size} requests" + _origin(plan, "max_batch_size")),
            ("max_input_len", f"{limits.max_input_len} tokens" + _origin(plan, "max_input_len")),
            ("max_seq_len", f"{limits.max_seq_len} tokens" + _origin(plan, "max_seq_len")),
            ("max_num_tokens", f"{limits.max_num_tokens} tokens per step" + _origin(plan, "max_num_tokens")),
        ],
    )
    if plan.target and plan.target.settings:
        yield "effective settings", [(each.name, _setting(each)) for each in plan.target.settings]
    yield _memory_title(plan), _memory(plan)
    yield "zones (what the proxy lets in flight)", list(_zones(plan))
    if plan.pace is None:
        yield "pace", [("", "unknown: this back end was not measured here (--calibration FILE)")]
    else:
        kind = "" if plan.pace.basis is Basis.MEASURED else "an estimate: "
        yield f"pace ({kind}{plan.pace.source})", _pace(plan.pace)


def _origin(plan: Plan, name: str) -> str:
    return f"  (not given: {plan.origins[name]})" if name in plan.origins else ""


def _memory_title(plan: Plan) -> str:
    if plan.target is None:
        return "memory"
    foreign = plan.target.trtllm is None
    return f"memory (each GPU{'; buffers and runtime as TensorRT-LLM has them' if foreign else ''})"


def _zones(plan: Plan) -> Iterator[tuple[str, str]]:
    zones, limits = plan.zones, plan.limits
    yield "prefill", f"{zones.prefill_tokens} prompt tokens"
    yield "KV", f"{zones.kv_tokens} tokens of the pool's {plan.memory.kv_tokens}"
    if zones.window_tokens is not None:
        most = zones.kv_need(limits.max_seq_len, limits.tokens_per_block)
        window = f"{zones.window_share:.0%} of the layers keep {zones.window_tokens} tokens"
        yield "KV of a sequence", f"at most {most} of {limits.max_seq_len} tokens: {window}"
    slots = f"{zones.decode_slots} requests"
    if plan.pace and zones.decode_slots < limits.max_batch_size:
        beside = f" beside the prompts of {plan.pace.bound_by}" if plan.pace.bound_by else ""
        slots += f" of {limits.max_batch_size}: more would break a TPOT promise{beside}"
    yield "decode", slots


def _model(plan: Plan) -> _Rows:
    model = plan.model
    return [
        ("name", plan.name),
        ("architecture", model.architecture),
        ("layers x hidden", f"{model.num_layers} x {model.hidden_size}"),
        ("heads / KV heads", f"{model.num_heads} / {model.num_kv_heads} of {model.head_size}"),
        ("weights", f"{plan.quantization.weights} ({plan.quantization.quant_algo or plan.dtype})"),
        ("KV cache", plan.quantization.kv_cache),
        (
            "back end",
            plan.backend + (f", {plan.threads} threads" + _origin(plan, "threads") if plan.threads else ""),
        ),
    ]


def _target(target: Target, origin: str) -> _Rows:
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
        rows.append(("TensorRT-LLM", f"{target.trtllm} ({target.image}){origin}"))
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
        (
            "KV pool",
            f"{memory.kv_tokens} tokens = {memory.kv_blocks} blocks = {_mb(memory.kv_pool_bytes)}"
            + _origin(plan, "kv_pool"),
        ),
        ("available", available),
    ]


def _pace(pace: Pace) -> _Rows:
    work = pace.workload
    rows = [
        ("request", f"{work.prompt_tokens} prompt tokens, {work.output_tokens} of answer"),
        ("prefill", f"{pace.prefill_tokens_per_s:,.0f} tokens/s"),
        ("step", f"{pace.step_ms:.1f} ms with {pace.batch} requests"),
        ("throughput", f"{pace.requests_per_s:.3g} requests/s at most, with no slot ever free"),
        *_kept(pace),
    ]
    return [*rows, *((f"class {each.name}", _promises(each)) for each in pace.classes)]


def _kept(pace: Pace) -> _Rows:
    rate = pace.kept_requests_per_s
    if rate is None:
        return []
    how = f"{rate:.3g} requests/s that come at random (Poisson), waiting included: an estimate by queueing formulas"
    return [("promises hold at", how if rate else "no rate: one is broken without any waiting")]


def _promises(each: ClassPace) -> str:
    ttft = _of(f"TTFT of {each.prompt_tokens} tokens without waiting", each.ttft_ms, each.promised_ttft_ms)
    total = _of("last token", each.total_ms, each.promised_deadline_ms)
    return f"{ttft}, {_of('TPOT', each.tpot_ms, each.promised_tpot_ms)}, {total}"


def _of(what: str, value_ms: float, promised_ms: float | None) -> str:
    promise = "" if promised_ms is None else f" of {promised_ms:g}"
    return f"{what} {value_ms:.3g}{promise} ms" if value_ms < 1000 else f"{what} {value_ms:.0f}{promise} ms"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
