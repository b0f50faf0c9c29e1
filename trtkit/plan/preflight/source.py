"""What a model needs of the engine that is to run it."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.trtllm import ARCHITECTURES_SINCE, HEAD_SIZES, LINES
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses, warns
from trtkit.plan.preflight.target import TRTLLM_BACKENDS
from trtkit.plan.types import Plan


@refuses
def line_has_architecture(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A release line that came before the family has no class to build it with."""
    first = ARCHITECTURES_SINCE.get(model.architecture, LINES[0])
    line = plan.target.trtllm if plan.target else None
    if line and contract.engine.backend.value == "tensorrt" and LINES.index(line) < LINES.index(first):
        message = f"TensorRT-LLM {line} has no {model.architecture}"
        yield Problem(message, "engine.trtllm", f"at least {first}")


@refuses
def head_size_has_kernel(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """TensorRT-LLM's attention takes heads of a multiple of 8 dimensions."""
    if contract.engine.backend.value in TRTLLM_BACKENDS and model.head_size % 8:
        message = f"heads of {model.head_size} dimensions are no multiple of 8"
        hint = f"sizes with kernels: {', '.join(map(str, HEAD_SIZES))}; the cpu back end takes any"
        yield Problem(message, "model.source", hint)


@warns
def head_size_is_common(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """Kernels of attention exist for a list of head sizes; others may fail or be slow."""
    size, backend = model.head_size, contract.engine.backend.value
    if size not in HEAD_SIZES and not (backend in TRTLLM_BACKENDS and size % 8):
        message = f"no attention kernel of {backend} is known for heads of {size} dimensions"
        yield Problem(message, "model.source", f"sizes with kernels: {', '.join(map(str, HEAD_SIZES))}")


@warns
def window_is_set_at_run_time(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A sliding window is not part of an engine: without the runtime's setting every layer sees everything."""
    windows = plan.target.max_attention_window if plan.target else None
    if windows is not None and contract.engine.backend.value == "tensorrt":
        message = f"layers look back {model.sliding_window} tokens, which the runtime has to be told"
        yield Problem(message, "model.source", f"serve with max_attention_window {list(windows)}")


@refuses
def dtype_has_kernel(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Attention and quantized layers of GPU engines compute in 16 bits, before SM 80 in float16."""
    if contract.dtype.value == "float32":
        yield Problem("engines for GPUs compute in 16 bits", "model.dtype", "use bfloat16 or float16")
    elif contract.dtype.value == "bfloat16" and plan.target and min(plan.target.sms, default=80) < 80:
        yield Problem("the compiler has no bfloat16 before SM 80", "model.dtype", "use float16")


@refuses
def gate_has_baseline(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """A quality gate compares with the model before it was quantized."""
    if contract.quantization.gate is not None and model.kept is not None:
        message = (
            f"the source is quantized itself ({model.kept.method}), and cannot tell what quantizing cost"
        )
        hint = "leave the key out, or name the model that it was made from in model.source"
        yield Problem(message, "quantization.gate", hint)


SOURCE_CHECKS = (
    line_has_architecture,
    head_size_has_kernel,
    head_size_is_common,
    window_is_set_at_run_time,
    dtype_has_kernel,
)
