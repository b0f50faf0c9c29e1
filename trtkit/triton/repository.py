"""Render a Triton model repository from a plan: pure, deterministic, free of machine paths."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit.catalog.trtllm import NEWEST
from trtkit.conventions import (
    BLS_MODEL,
    DRAFT_MODEL,
    ENGINE_MODEL,
    ENSEMBLE_MODEL,
    POSTPROCESSING_MODEL,
    PREPROCESSING_MODEL,
)
from trtkit.errors import InputError
from trtkit.plan.types import Plan
from trtkit.triton import tensors
from trtkit.triton.config import BANNER, batch_dynamically, new_config, run_on_cpu, set_parameters, to_text
from trtkit.triton.ensemble import Step, ensemble_steps
from trtkit.triton.generation import Generation, generation_of
from trtkit.triton.launch import SCRIPT, Launch, Mode, script
from trtkit.triton.llmapi import llmapi_files
from trtkit.triton.runtime import (
    POLL_PERIOD_MS,
    engine_parameters,
    logits_dtype,
    nodes_of,
    tensorrt_parameters,
)
from trtkit.triton.tensors import Tensor
from trtkit.triton.vllm import vllm_files

ENGINE_FOLDER = "engine"
TOKENIZER_FOLDER = "tokenizer"
"""Both are resolved relative to the model's version directory, so the repository can be moved."""
MOUNT = "/model_repo"
"""Where containers see a repository, unless it is said otherwise."""

_LEAST_INSTANCES, _REQUESTS_PER_INSTANCE = 2, 64
"""One instance would tokenize one request at a time."""

_HERE = Path(__file__).parent
_MODELS = _HERE / "models"
_SHARED = {
    "trtkit_text.py": _HERE / "text.py",
    "trtkit_wiring.py": _HERE / "wiring.py",
    "trtkit_io.py": _MODELS / "stub_io.py",
}
"""Modules that every Python model finds beside its model.py, so that trtkit itself need not be installed."""


class Dialect(str, enum.Enum):
    """Who runs the ``tensorrt_llm`` model."""

    CPU = "cpu"
    """trtkit's Python model around one of its engines: OpenVINO's, or a graph with slots."""
    TENSORRT = "tensorrt"
    """TensorRT-LLM's C++ back end, in the plan's release line."""
    LLMAPI = "llmapi"
    """One Python model around TensorRT-LLM's Python API."""
    VLLM = "vllm"
    """Triton's vLLM back end."""


def dialect_of(plan: Plan) -> Dialect:
    """Return who runs the engine of a plan.

    Raises:
        InputError: Nobody does in Triton.
    """
    if plan.backend == "edgellm":
        hint = "let `trtkit build` make its product: docs/backends.md says how that is served"
        raise InputError("Edge-LLM has no back end of Triton, and no model repository", hint=hint)
    own = {Dialect.TENSORRT.value, Dialect.LLMAPI.value, Dialect.VLLM.value}
    return Dialect(plan.backend) if plan.backend in own else Dialect.CPU


def render(
    plan: Plan, *, dialect: str | None = None, mount: str = MOUNT, draft: Plan | None = None
) -> dict[str, bytes]:
    """Return every generated file of the repository by its path relative to the root.

    ``dialect`` is the plan's own unless it is given. ``mount`` is where the container sees the repository: the C++ back
    end resolves no relative path. ``draft`` is the plan of the engine that drafts, where there is one.
    """
    spoken = dialect_of(plan) if dialect is None else Dialect(dialect)
    if spoken is Dialect.LLMAPI:
        return llmapi_files(plan, mount=mount, drafts=draft is not None)
    if spoken is Dialect.VLLM:
        return vllm_files(plan, mount=mount)
    is_tensorrt = spoken is Dialect.TENSORRT
    generation = _generation(plan)
    engine = _tensorrt_engine(plan, mount, shares=draft is not None) if is_tensorrt else _cpu_engine(plan)
    drafting = [_tensorrt_engine(draft, mount, DRAFT_MODEL, shares=True)] if draft else []
    configs = (
        _preprocessing(plan),
        engine,
        _postprocessing(plan),
        _ensemble(plan, engine, generation),
        _bls(plan, generation, DRAFT_MODEL if draft else ""),
        *drafting,
    )
    files: dict[str, bytes] = {}
    for config in configs:
        files[f"{config.name}/config.pbtxt"] = to_text(config)
        files |= {f"{config.name}/1/{name}": content for name, content in _version_files(config).items()}
    if is_tensorrt:
        files[SCRIPT] = script(launch_of(plan, mount=mount, draft=draft))
    return dict(sorted(files.items()))


def launch_of(plan: Plan, *, mount: str = MOUNT, draft: Plan | None = None) -> Launch:
    """Return how an engine of TensorRT-LLM is started; two engines in one server need one process for both.

    Raises:
        InputError: Nothing can start it.
    """
    if draft is None:
        return Launch(mount, _world(plan), nodes=nodes_of(plan), mode=Mode.LEADER)
    world, nodes = max(map(_world, (plan, draft))), max(map(nodes_of, (plan, draft)))
    return Launch(mount, world, Mode.ORCHESTRATOR, (ENGINE_MODEL, DRAFT_MODEL), nodes)


def _world(plan: Plan) -> int:
    return plan.target.ranks.world if plan.target else 1


def _generation(plan: Plan) -> Generation:
    """Return the plan's line; trtkit's own engines have the newest one's tensors."""
    return generation_of((plan.target and plan.target.trtllm) or NEWEST)


def _version_files(config: Any) -> dict[str, bytes]:
    if config.backend != "python":
        return {".gitkeep": b""}  # Triton wants a version directory, git keeps no empty ones
    sources = {path.name: path for path in (_MODELS / config.name).glob("*.py")} | _SHARED
    return {name: BANNER.encode() + source.read_bytes() for name, source in sources.items()}


def _model(plan: Plan, name: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> Any:
    """Return a configuration with the plan's batch and the type of its logits."""
    return new_config(name, _typed(plan, inputs), _typed(plan, outputs), batch=plan.limits.max_batch_size)


def _typed(plan: Plan, declared: Iterable[Tensor]) -> Sequence[Tensor]:
    dtype = logits_dtype(plan)
    return [replace(each, dtype=dtype) if each.name in tensors.LOGITS else each for each in declared]


def _instances(plan: Plan) -> int:
    return max(_LEAST_INSTANCES, -(-plan.limits.max_batch_size // _REQUESTS_PER_INSTANCE))


def _preprocessing(plan: Plan) -> Any:
    model = plan.model
    pad_id = model.pad_token_id if model.pad_token_id is not None else next(iter(model.eos_token_ids), 0)
    config = _model(plan, PREPROCESSING_MODEL, tensors.PREPROCESSING_INPUTS, tensors.PREPROCESSING_OUTPUTS)
    run_on_cpu(config, "python", instances=_instances(plan))
    batch_dynamically(config)
    set_parameters(
        config,
        {
            "tokenizer_dir": TOKENIZER_FOLDER,
            "add_special_tokens": "true",
            "multimodal_model_path": "",
            "gpt_model_path": "",
            # The tensor contract has one end id; the others travel as one-token stop words.
            "end_ids": ",".join(map(str, model.eos_token_ids)),
            "pad_id": str(pad_id),
        },
    )
    return config


def _cpu_engine(plan: Plan) -> Any:
    outputs = (*tensors.ENGINE_OUTPUTS, tensors.CONTEXT_OUTPUT)
    config = _engine(plan, ENGINE_MODEL, tensors.ENGINE_INPUTS, outputs)
    set_parameters(
        config, engine_parameters(plan, engine_path=ENGINE_FOLDER, tokenizer_path=TOKENIZER_FOLDER)
    )
    run_on_cpu(config, "python", instances=1)
    return config


def _tensorrt_engine(plan: Plan, mount: str, name: str = ENGINE_MODEL, *, shares: bool = False) -> Any:
    """Return the configuration of an engine; one that ``shares`` is on the same GPUs as another, counted from 0."""
    generation = _generation(plan)
    inputs, outputs = map(generation.engine_tensors, (tensors.ENGINE_INPUTS, tensors.ENGINE_OUTPUTS))
    config = _engine(plan, name, inputs, outputs)
    set_parameters(config, tensorrt_parameters(plan, generation, model_path=f"{mount}/{name}/1"))
    if shares:
        # Their memory was counted together on these.
        set_parameters(config, {"gpu_device_ids": ",".join(map(str, range(_world(plan))))})
    # KIND_CPU as upstream has it: the back end chooses its GPUs itself.
    run_on_cpu(config, "tensorrtllm", instances=1)
    return config


def _engine(plan: Plan, name: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> Any:
    config = _model(plan, name, inputs, outputs)
    batch_dynamically(config)
    config.model_transaction_policy.decoupled = True
    return config


def _postprocessing(plan: Plan) -> Any:
    config = _model(plan, POSTPROCESSING_MODEL, tensors.POSTPROCESSING_INPUTS, tensors.POSTPROCESSING_OUTPUTS)
    run_on_cpu(config, "python", instances=_instances(plan))
    # With two instances, the chunks of a stream would overtake each other on their way through the ensemble.
    config.dynamic_batching.preserve_ordering = True
    set_parameters(config, {"tokenizer_dir": TOKENIZER_FOLDER, "skip_special_tokens": "true"})
    return config


def _bls(plan: Plan, generation: Generation, draft: str = "") -> Any:
    inputs, outputs = map(generation.present, (tensors.BLS_INPUTS, tensors.TEXT_OUTPUTS))
    config = _model(plan, BLS_MODEL, inputs, outputs)
    # One instance with a thread per request: more instances would be more processes, not more concurrency.
    run_on_cpu(config, "python", instances=1)
    config.model_transaction_policy.decoupled = True
    set_parameters(
        config,
        {
            "tokenizer_dir": TOKENIZER_FOLDER,
            "skip_special_tokens": "true",
            "accumulate_tokens": "false",
            "tensorrt_llm_model_name": ENGINE_MODEL,
            "tensorrt_llm_draft_model_name": draft,
            "multimodal_encoders_name": "",
            "cancellation_check_period_ms": str(POLL_PERIOD_MS // 2),
            # Requests wait in the engine's queue, where they can be seen and cancelled, not for a thread.
            "max_threads": str(max(64, 4 * plan.limits.max_batch_size)),
        },
    )
    if draft and plan.target and (most := plan.target.build_flags.get("max_draft_len")):
        set_parameters(config, {"max_draft_tokens": str(most)})
    if generation.renamed:
        names = ",".join(f"{name}={old}" for name, old in generation.renamed.items())
        set_parameters(config, {"engine_tensor_names": names})
    return config


def _ensemble(plan: Plan, engine: Any, generation: Generation) -> Any:
    inputs, outputs = map(generation.present, (tensors.ENSEMBLE_INPUTS, tensors.TEXT_OUTPUTS))
    config = _model(plan, ENSEMBLE_MODEL, inputs, outputs)
    config.platform = "ensemble"
    has_context = any(output.name == tensors.CONTEXT_OUTPUT.name for output in engine.output)
    for step in ensemble_steps(with_context=has_context, generation=generation):
        _add_step(config, step)
    return config


def _add_step(config: Any, step: Step) -> None:
    added = config.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
    added.input_map.update(step.inputs)
    added.output_map.update(step.outputs)
