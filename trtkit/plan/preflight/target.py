"""What must be right before numbers can be computed: the GPU, the release line, the division among ranks."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.catalog.support import RTX_SMS
from trtkit.catalog.trtllm import LINES, LLMAPI_SINCE, NEWEST
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.parallel import parallel_problems
from trtkit.plan.support import gpus_of

TRTLLM_BACKENDS = ("tensorrt", "llmapi")
"""Back ends that are part of TensorRT-LLM."""


def target_problems(contract: Contract, model: ModelConfig) -> list[Problem]:
    """Return why no plan can be made for the contract's target, everything at once."""
    if not BACKENDS[contract.engine.backend.value].needs_gpu:
        return list(_only_on_gpus(contract))
    engine = contract.engine
    ranks = Parallelism(engine.tensor_parallel, engine.pipeline_parallel, engine.moe_expert_parallel)
    found = [*_gpu_is_known(contract), *_targets_are_known(contract), *_slots_have_no_beams(contract)]
    found += [*_line_is_known(contract), *parallel_problems(model, ranks)]
    if engine.threads is not None:
        message = f"the {engine.backend.value} back end has no threads to set"
        found.append(Problem(message, "engine.threads", "leave the key out"))
    return found


def _gpu_is_known(contract: Contract) -> Iterator[Problem]:
    gpu, backend, line = contract.engine.gpu, contract.engine.backend.value, contract.engine.trtllm
    if gpu in GPUS:
        known = gpus_of(backend, line if line in LINES else NEWEST)
        if gpu not in known:
            yield Problem(
                f"{backend} has no kernels for {gpu}", "engine.gpu", f"it runs on {', '.join(known)}"
            )
        return
    near = near_gpus(gpu or "")
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    hint = f"{meant}known: {', '.join(GPUS)}"
    message = "the back end needs a target GPU" if gpu is None else f"{gpu!r} is no GPU of the catalog"
    yield Problem(message, "engine.gpu", hint)


def near_gpus(name: str) -> list[str]:
    """Return the GPUs whose names begin so, or else the one that is spelt most like it; capitals do not count."""
    word = name.lower().replace("_", "-").replace(" ", "-")
    begin = [each for each in GPUS if word and each.startswith(word)]
    return begin or difflib.get_close_matches(word, GPUS, n=1)


def _targets_are_known(contract: Contract) -> Iterator[Problem]:
    """An engine for other GPUs than the one that it is planned for does not run there."""
    key, targets, gpu = "engine.targets", contract.engine.targets, GPUS.get(contract.engine.gpu or "")
    if targets is None:
        return
    known = sorted(RTX_SMS | {each.sm for each in GPUS.values()})
    for sm in targets:
        if sm not in known:
            hint = f"a compute capability without its dot, one of {', '.join(map(str, known))}"
            yield Problem(f"{sm} is no compute capability that is known", key, hint)
    if gpu is not None and gpu.sm not in targets:
        message = f"the engine would not run on {gpu.name}, which engine.gpu names: its SM is {gpu.sm}"
        yield Problem(message, key, f"add {gpu.sm}, or name another GPU")


def _slots_have_no_beams(contract: Contract) -> Iterator[Problem]:
    """Beams share what came before they parted, which caches of slots do not."""
    name = contract.engine.backend.value
    if BACKENDS[name].cache_per_slot and contract.engine.limits.max_beam_width > 1:
        message = f"the {name} back end has no beam search"
        yield Problem(message, "engine.limits.max_beam_width", "leave the key out")


def _line_is_known(contract: Contract) -> Iterator[Problem]:
    """A line without the back end, or one that nothing is known of, has no flags to plan with."""
    key, line, backend = "engine.trtllm", contract.engine.trtllm, contract.engine.backend.value
    if line is None:
        return
    first = LLMAPI_SINCE if backend == "llmapi" else LINES[0]
    if backend not in TRTLLM_BACKENDS:
        yield Problem(f"the {backend} back end is not part of TensorRT-LLM", key, "leave the key out")
    elif line not in LINES:
        hint = f"lines that are: {', '.join(LINES[LINES.index(first) :])}"
        gone = f"; the engine flow is known from {first} to {NEWEST}" if backend == "tensorrt" else ""
        yield Problem(f"TensorRT-LLM {line} is not in the catalog{gone}", key, hint)
    elif LINES.index(line) < LINES.index(first):
        yield Problem(f"TensorRT-LLM {line} has no LLM API back end", key, f"at least {first}")


def _only_on_gpus(contract: Contract) -> Iterator[Problem]:
    """Keys that nothing would use on a CPU are refused, not left without effect."""
    engine = contract.engine
    used = {
        "engine.trtllm": engine.trtllm is not None,
        "engine.build_flags": bool(engine.build_flags),
        "engine.gpu_weights_fraction": engine.gpu_weights_fraction is not None,
        "engine.moe_expert_parallel": engine.moe_expert_parallel > 1,
        "engine.limits.max_beam_width": engine.limits.max_beam_width > 1,
        "engine.chunked_context": not engine.chunked_context,
        "engine.kv_cache.max_bytes": engine.kv_cache.max_bytes is not None,
        "engine.speculation": engine.speculation is not None,
        "engine.lora": engine.lora is not None,
    }
    for key, given in used.items():
        if given:
            yield Problem(
                f"the {engine.backend.value} back end has no such setting", key, "leave the key out"
            )
