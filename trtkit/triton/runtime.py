"""The settings of TensorRT-LLM's runtime: what a plan comes to as ``parameters`` of the engine's model."""

from __future__ import annotations

from trtkit.plan.types import Plan
from trtkit.triton.config import flag
from trtkit.triton.generation import ENGINE_PARAMETERS, Generation

WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
POLL_PERIOD_MS = 100


def engine_parameters(plan: Plan, *, engine_path: str, tokenizer_path: str) -> dict[str, str]:
    """Return what every engine's model is told, whoever runs it."""
    return {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": engine_path,
        "max_beam_width": str(plan.target.max_beam_width if plan.target else 1),
        "batch_scheduler_policy": "guaranteed_no_evict",
        # The pool's size alone: a fraction beside it would make it the smaller of the two.
        "max_tokens_in_paged_kv_cache": str(plan.memory.kv_tokens),
        "enable_kv_cache_reuse": flag(plan.enable_block_reuse),
        "exclude_input_in_output": "true",
        "cancellation_check_period_ms": str(POLL_PERIOD_MS),
        "stats_check_period_ms": str(POLL_PERIOD_MS),
        # Lines from 0.19 on refuse to load when one of the next three is absent, even if unused.
        "tokenizer_dir": tokenizer_path,
        "xgrammar_tokenizer_info_path": "",
        "guided_decoding_backend": "",
    }


def tensorrt_parameters(plan: Plan, generation: Generation, *, model_path: str) -> dict[str, str]:
    """Return the parameters of TensorRT-LLM's own back end; ``model_path`` is the version's folder where it runs."""
    values = engine_parameters(
        plan, engine_path=f"{model_path}/engine", tokenizer_path=f"{model_path}/tokenizer"
    )
    values |= _speculation(plan) | _context(plan) | _weights(plan) | _nodes(plan) | _adapters(plan)
    return generation.keep(values | {"executor_worker_path": WORKER})


def logits_dtype(plan: Plan) -> str:
    """Return the data type of logits as Triton names it: the builder's flag, or the checkpoints' float32."""
    asked = plan.target.build_flags.get("logits_dtype") if plan.target else None
    return "FP16" if asked == "float16" else "FP32"


def nodes_of(plan: Plan) -> int:
    """Return how many machines the ranks are spread over."""
    return plan.target.ranks.nodes if plan.target else 1


def _context(plan: Plan) -> dict[str, str]:
    """Return how prompts are read; no engine holds its model's windows, the runtime has to be told."""
    if plan.target is None:
        return {}
    windows = plan.target.max_attention_window
    found = {"enable_chunked_context": flag(plan.target.chunked_context)}
    if windows is not None:
        layers = (str(windows[layer % len(windows)]) for layer in range(plan.model.num_layers))
        found["max_attention_window_size"] = ",".join(layers)
    return found


def _speculation(plan: Plan) -> dict[str, str]:
    """Return how drafts are decoded; those of another model come with requests and need no mode."""
    mode = str(plan.target.build_flags.get("speculative_decoding_mode", "")) if plan.target else ""
    if mode in {"", "draft_tokens_external"} or plan.target is None:
        return {}
    names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    sizes = dict(zip(names, map(str, plan.target.lookahead or ()), strict=False))
    paths = plan.target.choices or ()
    tree = {f"{mode}_choices": ",".join(map(_braced, paths))} if paths else {}
    return {"decoding_mode": mode.removesuffix("_decoding"), **sizes, **tree}


def _braced(path: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, path)) + "}"


def _weights(plan: Plan) -> dict[str, str]:
    share = plan.target.gpu_weights_fraction if plan.target else None
    return {} if share is None else {"gpu_weights_percent": str(share)}


def _adapters(plan: Plan) -> dict[str, str]:
    """Return the largest rank that the cache of adapters takes, where it is above the back end's own."""
    rank = plan.target.build_flags.get("max_lora_rank", 0) if plan.target else 0
    name = "lora_cache_max_adapter_size"
    return {name: str(rank)} if int(rank) > int(ENGINE_PARAMETERS[name].default or 0) else {}


def _nodes(plan: Plan) -> dict[str, str]:
    nodes = nodes_of(plan)
    return {"num_nodes": str(nodes)} if nodes > 1 else {}
