"""What models have to agree in: with each other, and with the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtkit.conventions import BLS_MODEL, ENGINE_MODEL, ENSEMBLE_MODEL
from trtkit.errors import Problem
from trtkit.triton.lint.model import TENSORRT, Model, Models
from trtkit.triton.tensors import LOGITS

_DECOUPLED = "model_transaction_policy.decoupled"
_BUILT_LOGITS = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16"}
_ON = ("true", "True", "TRUE", "1")


def agreement_problems(models: Models, line: str | None) -> Iterator[Problem]:
    """Check pairs of models, engines against their configuration, and numbers of instances."""
    engines = [model for model in models.values() if model.has_engine or model.is_llmapi]
    yield from _decoupling(models, engines)
    yield from _references(models)
    for model in engines:
        if model.built is not None:
            yield from _engine(model, model.built, line)
    yield from _instances(models)


def _decoupling(models: Models, engines: list[Model]) -> Iterator[Problem]:
    streams = {model.name: _streams(model) for model in engines}
    if BLS_MODEL in models:
        streams[BLS_MODEL] = _streams(models[BLS_MODEL])
    if len(set(streams.values())) > 1:
        states = ", ".join(f"{name} {str(value).lower()}" for name, value in streams.items())
        first = models[next(iter(streams))]
        yield first.problem(
            f"the models disagree: {states}", _DECOUPLED, "streaming needs true in all of them"
        )
    ensemble = models.get(ENSEMBLE_MODEL)
    if ensemble and ensemble.config.HasField("model_transaction_policy"):
        engine = streams.get(ENGINE_MODEL, _streams(ensemble))
        if engine != _streams(ensemble):
            message = f"the ensemble and {ENGINE_MODEL} disagree"
            yield ensemble.problem(message, _DECOUPLED, "leave it out: Triton takes it from the steps")
    for model in engines:
        if not _streams(model):
            yield model.warning("nothing can be streamed from it", _DECOUPLED, "set it to true")


def _streams(model: Model) -> bool:
    return bool(model.config.model_transaction_policy.decoupled)


def _references(models: Models) -> Iterator[Problem]:
    bls = models.get(BLS_MODEL)
    if bls is None:
        return
    for key in ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"):
        name = bls.text(key)
        if name and "${" not in name and name not in models:
            yield bls.problem(f"there is no model {name!r}", f"parameters.{key}", "add or rename it")


def _engine(model: Model, built: Any, line: str | None) -> Iterator[Problem]:
    config, rebuild = model.config, "build the engine again, or write the repository for this one"
    if line and built.line != line:
        yield model.problem(f"the engine is of TensorRT-LLM {built.version}, not {line}", "", rebuild)
    beams = model.text("max_beam_width")
    if built.max_batch_size is not None and config.max_batch_size > built.max_batch_size:
        message = f"{config.max_batch_size} requests, the engine takes {built.max_batch_size}"
        yield model.problem(message, "max_batch_size", rebuild)
    if built.max_beam_width is not None and _is_number(beams) and int(beams) > built.max_beam_width:
        message = f"{beams} beams, the engine has {built.max_beam_width}"
        yield model.problem(message, "parameters.max_beam_width", rebuild)
    yield from _pool(model, built)
    wanted = _BUILT_LOGITS.get(built.logits_dtype or "")
    for tensor in (*config.input, *config.output):
        if wanted and tensor.name in LOGITS and _dtype(tensor) != wanted:
            message = f"{tensor.name} is {_dtype(tensor)}, the engine's logits are {built.logits_dtype}"
            yield model.problem(message, "output", f"declare {wanted}")


def _pool(model: Model, built: Any) -> Iterator[Problem]:
    """Check the KV cache; without paged context attention no block is read by another request or piece."""
    tokens = model.text("max_tokens_in_paged_kv_cache")
    windows = model.text("max_attention_window_size")
    if built.max_seq_len and _is_number(tokens) and int(tokens) < built.max_seq_len and not windows:
        message = f"{tokens} tokens are less than one request may take, {built.max_seq_len}"
        yield model.warning(message, "parameters.max_tokens_in_paged_kv_cache", "give it more")
    for key in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if built.paged_context is False and model.text(key) in _ON:
            message = f"{key} needs an engine with paged context attention, which this one has not"
            yield model.problem(
                message, f"parameters.{key}", "set it to false, or build with use_paged_context_fmha"
            )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _dtype(tensor: Any) -> str:
    from tritonclient.grpc.model_config_pb2 import DataType

    return str(DataType.Name(tensor.data_type))


def _instances(models: Models) -> Iterator[Problem]:
    for name in ("preprocessing", "postprocessing"):
        if name in models and _count(models[name]) == 1:
            message = f"{name} has one instance: parallel requests are tokenized one after another"
            yield models[name].warning(message, "instance_group.count", "set count: 2")
    bls = models.get(BLS_MODEL)
    if bls and _count(bls) == 1 and not bls.text("max_threads"):
        message = "one instance serves one request at a time"
        yield bls.warning(
            message, "instance_group.count", "one for each request in flight, or use the ensemble"
        )
    for model in models.values():
        if model.config.backend == TENSORRT and _count(model) > 1 and not model.text("gpu_device_ids"):
            message = "several instances share the same GPUs, and each takes a pool of its own"
            yield model.problem(message, "parameters.gpu_device_ids", "give each its GPUs, such as 0,1;2,3")


def _count(model: Model) -> int:
    return sum(group.count or 1 for group in model.config.instance_group)
