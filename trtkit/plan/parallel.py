"""Whether a model can be divided among the ranks that are asked for."""

from __future__ import annotations

from collections.abc import Callable

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.errors import Problem


def parallel_problems(model: ModelConfig, ranks: Parallelism) -> list[Problem]:
    """Return every number that does not divide, with the sizes that would; keys are the contract's."""
    problems = _tensor(model, ranks) + _experts(model, ranks) + _pipeline(model, ranks)
    if ranks.tp > 1 and not ARCHITECTURES[model.architecture].pads_vocab and model.vocab_size % ranks.tp:
        problems.append(
            Problem(
                f"{model.architecture} engines cannot pad the vocabulary of {model.vocab_size} to {ranks.tp} ranks",
                "engine.tensor_parallel",
                _sizes(model, lambda tp: model.vocab_size % tp == 0),
            )
        )
    return problems


def heads_divide(model: ModelConfig, tp: int) -> bool:
    """Return whether ``tp`` ranks can share the heads: KV heads are divided, or each is held by several ranks."""
    kv_heads = model.num_kv_heads
    return model.num_heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)


def _tensor(model: ModelConfig, ranks: Parallelism) -> list[Problem]:
    tp, key = ranks.tp, "engine.tensor_parallel"
    problems = []
    if not heads_divide(model, tp):
        message = (
            f"{model.num_heads} query heads and {model.num_kv_heads} KV heads cannot be shared by {tp} ranks"
        )
        problems.append(Problem(message, key, _sizes(model, lambda tp: heads_divide(model, tp))))
    widths = {"intermediate_size": model.intermediate_size}
    if model.moe is not None:
        widths = {"intermediate size of the shared expert": model.moe.shared_intermediate_size}
    for name, width in widths.items():
        if width % tp:
            problems.append(
                Problem(
                    f"{name} {width} is no multiple of {tp} ranks",
                    key,
                    _sizes(model, lambda tp, width=width: width % tp == 0),  # type: ignore[misc]
                )
            )
    return problems


def _experts(model: ModelConfig, ranks: Parallelism) -> list[Problem]:
    key, moe = "engine.moe_expert_parallel", model.moe
    if moe is None:
        return [] if ranks.moe_ep == 1 else [Problem("the model has no experts", key, "set it to 1")]
    problems = []
    if ranks.tp % ranks.moe_ep:
        message = f"{ranks.tp} ranks cannot form {ranks.moe_ep} groups of experts"
        problems.append(Problem(message, key, "a divisor of tensor_parallel"))
    elif moe.intermediate_size % ranks.moe_tp:
        message = f"the experts' width {moe.intermediate_size} is no multiple of {ranks.moe_tp} ranks"
        problems.append(Problem(message, key, "more groups of experts, or fewer ranks"))
    if moe.num_experts % ranks.moe_ep:
        message = f"{moe.num_experts} experts cannot be shared by {ranks.moe_ep} groups"
        problems.append(Problem(message, key, f"a divisor of {moe.num_experts}"))
    return problems


def _pipeline(model: ModelConfig, ranks: Parallelism) -> list[Problem]:
    key, limit = "engine.pipeline_parallel", ARCHITECTURES[model.architecture].max_pp
    if limit is not None and ranks.pp > limit:
        return [
            Problem(f"{model.architecture} engines have at most {limit} stage(s)", key, f"at most {limit}")
        ]
    if model.num_layers % ranks.pp:
        # Loaders up to 0.17 lose the remainder without a word, later ones give it to the first stages.
        message = f"{model.num_layers} layers cannot be shared by {ranks.pp} stages evenly"
        return [Problem(message, key, f"a divisor of {model.num_layers}")]
    return []


def _sizes(model: ModelConfig, fits: Callable[[int], bool]) -> str:
    sizes = [tp for tp in range(1, model.num_heads + 1) if fits(tp) and heads_divide(model, tp)]
    return f"sizes that fit: {', '.join(map(str, sizes[:8]))}"
