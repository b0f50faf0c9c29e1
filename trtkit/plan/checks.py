"""Pre-flight checks: each a small named function from contract, model and plan to problems."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import BACKENDS, BUILT
from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import Check, refuses, warns
from trtkit.plan.preflight.layers import LAYER_CHECKS
from trtkit.plan.preflight.memory import MEMORY_CHECKS
from trtkit.plan.preflight.pace import PACE_CHECKS
from trtkit.plan.preflight.slots import SLOT_CHECKS
from trtkit.plan.preflight.source import gate_has_baseline
from trtkit.plan.quantization import (
    group_size_has_kernel,
    heads_are_quantized_on_purpose,
    layers_have_their_formats,
    mixtures_are_new,
    settings_have_a_user,
    source_has_the_formats,
    source_left_plain_what_it_may,
)
from trtkit.plan.types import Plan


def build_problems(contract: Contract) -> list[Problem]:
    """Return why this release does not build what it may well plan."""
    name = contract.engine.backend.value
    if name in BUILT:
        return []
    message = f"this release does not build for {name!r}"
    hint = f"back ends that work: {', '.join(BUILT)}; `trtkit plan` plans for the others too"
    return [Problem(message, "engine.backend", hint)]


def backend_problems(contract: Contract) -> list[Problem]:
    """Return why the contract's back end, formats or parallelism cannot be planned; checked before any number."""
    name = contract.engine.backend.value
    facts = BACKENDS[name]
    problems = []
    weights, kv_cache = contract.quantization.weights.value, contract.quantization.kv_cache.value
    if weights not in facts.weights:
        message = f"the {name} back end does not run {weights}"
        problems.append(Problem(message, "quantization.weights", f"it runs {', '.join(facts.weights)}"))
    if kv_cache not in facts.kv_cache:
        message = f"the {name} back end has no {kv_cache} KV cache"
        problems.append(Problem(message, "quantization.kv_cache", f"use {', '.join(facts.kv_cache)}"))
    engine = contract.engine
    if engine.tensor_parallel * engine.pipeline_parallel > facts.max_ranks:
        message = f"the {name} back end runs on {facts.max_ranks} rank, tensor x pipeline asks for more"
        problems.append(Problem(message, "engine.tensor_parallel", "set both to 1"))
    if engine.gpu is not None and not facts.needs_gpu:
        problems.append(Problem(f"the {name} back end has no target GPU", "engine.gpu", "leave the key out"))
    if engine.targets is not None and name != "rtx":
        message = f"the {name} back end compiles for no list of GPUs"
        problems.append(Problem(message, "engine.targets", "leave the key out, or set engine.backend to rtx"))
    if engine.kv_cache.tokens_per_block not in facts.tokens_per_block:
        allowed = ", ".join(str(size) for size in facts.tokens_per_block)
        message = (
            f"the {name} back end has blocks of {allowed} tokens, not {engine.kv_cache.tokens_per_block}"
        )
        problems.append(Problem(message, "engine.kv_cache.tokens_per_block", f"set it to {allowed}"))
    return problems


@refuses
def backend_runs_architecture(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """A back end that does not know the family's layers cannot run them."""
    name = contract.engine.backend.value
    known = BACKENDS[name].architectures
    if known and model.architecture not in known:
        message = f"the {name} back end does not run {model.architecture}"
        yield Problem(message, "model.source", f"it runs {', '.join(known)}")


@refuses
def experts_have_graph(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """Experts are one product of stacked weights in a standard graph, which no operator quantizes."""
    name, weights = contract.engine.backend.value, contract.quantization.weights.value
    if model.moe and BACKENDS[name].cache_per_slot and weights != "none":
        message = f"the {name} back end has experts in the model's own type only, not in {weights}"
        yield Problem(message, "quantization.weights", "use none, or a back end of TensorRT-LLM")


@refuses
def backend_runs_attention(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """A back end without a family's kind of scores would give other text."""
    name = contract.engine.backend.value
    kinds = {
        "a cap on attention scores (attn_logit_softcapping)": model.numerics.get("attn_logit_softcapping"),
        "ALiBi": str(model.numerics.get("position_embedding_type", "")).startswith("alibi"),
    }
    for kind, present in kinds.items():
        if present and not BACKENDS[name].all_attention:
            yield Problem(f"the {name} back end does not run {kind}", "model.source", "use a model without")


@refuses
def backend_runs_rope(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A back end that does not scale the rotary angles as the model was trained would give other text."""
    name, scaling = contract.engine.backend.value, model.rotary_scaling or {}
    kind, known = scaling.get("type"), BACKENDS[name].rope_types
    if kind is not None and kind not in known:
        message = (
            f"the {name} back end does not run this model's {kind} rotary scaling (rope_type in config.json)"
        )
        yield Problem(message, "model.source", f"use a model with {' or '.join(known)} scaling, or none")
    original = scaling.get("original_max_position_embeddings", 0)
    if kind == "longrope" and not BACKENDS[name].all_attention and plan.limits.max_seq_len > original:
        message = (
            f"beyond {original} tokens LongRoPE has other angles, which the {name} back end does not run"
        )
        yield Problem(message, "engine.limits.max_seq_len", f"at most {original}")


@refuses
def backend_honours_window(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Beyond a sliding window the text differs where every token sees every earlier one."""
    name, window = contract.engine.backend.value, model.sliding_window
    if window is not None and not BACKENDS[name].sliding_window and plan.limits.max_seq_len > window:
        message = (
            f"the model's attention reaches back {window} tokens, and the {name} back end has no such window"
        )
        yield Problem(message, "engine.limits.max_seq_len", f"at most {window}, up to which nothing changes")


@refuses
def sequence_fits_model(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A sequence longer than the model's positions would be read by a position table that does not exist."""
    most = reachable_positions(model)
    if plan.limits.max_seq_len > most:
        message = f"max_seq_len {plan.limits.max_seq_len} exceeds the model's {most} positions"
        hint = f"at most {most}; a model that was made for more says so in config.json (rope_scaling)"
        yield Problem(message, "engine.limits.max_seq_len", hint)


def reachable_positions(model: ModelConfig) -> int:
    """Return the longest sequence that a model's rotary angles were made for.

    Linear and YaRN scaling stretch the positions that the model was trained with; where config.json counts those,
    the stretched ones are ``factor`` times as many (Qwen2.5: 32,768 x 4). Other scalings count the stretched ones.
    """
    scaling, positions = model.rotary_scaling or {}, model.max_position_embeddings
    if scaling.get("type") not in ("linear", "yarn"):
        return positions
    original = scaling.get("original_max_position_embeddings")
    if original is None:
        # Nothing tells whether the positions are stretched already; TensorRT-LLM takes it that they are not.
        original = positions
    return max(positions, int(original * scaling.get("factor", 1)))


@warns
def sequence_was_stretched(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Positions beyond those of config.json are there by a scaling factor alone."""
    positions = model.max_position_embeddings
    if positions < plan.limits.max_seq_len <= reachable_positions(model):
        kind = (model.rotary_scaling or {}).get("type")
        message = f"beyond {positions} positions the model reads by {kind} scaling"
        yield Problem(message, "engine.limits.max_seq_len", f"at most {positions} if that is not meant")


@refuses
def prompt_leaves_room(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """The longest prompt must leave at least one token for the answer."""
    limits = plan.limits
    if limits.max_input_len >= limits.max_seq_len:
        message = (
            f"max_input_len {limits.max_input_len} leaves no output within max_seq_len {limits.max_seq_len}"
        )
        yield Problem(message, "engine.limits.max_input_len", f"at most {limits.max_seq_len - 1}")


@refuses
def step_holds_batch(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Every running request takes one token of each step."""
    limits = plan.limits
    if limits.max_num_tokens < limits.max_batch_size:
        message = f"max_num_tokens {limits.max_num_tokens} is below max_batch_size {limits.max_batch_size}"
        yield Problem(message, "engine.limits.max_num_tokens", f"at least {limits.max_batch_size}")


@refuses
def classes_fit_engine(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A class may not be promised more than the engine can take."""
    for name, spec in contract.classes.items():
        key = f"classes.{name}"
        if (spec.max_prompt_tokens or 0) > plan.limits.max_input_len:
            message = (
                f"{spec.max_prompt_tokens} exceeds the engine's max_input_len {plan.limits.max_input_len}"
            )
            yield Problem(
                message, f"{key}.max_prompt_tokens", "lower it, or raise engine.limits.max_input_len"
            )
        cap = spec.max_output_tokens or plan.limits.max_seq_len - 1
        # A default that nobody wrote is clipped like any other wish.
        if spec.default_output_tokens > cap and "default_output_tokens" in spec.model_fields_set:
            message = f"{spec.default_output_tokens} exceeds what the class may ask for, {cap}"
            yield Problem(message, f"{key}.default_output_tokens", f"at most {cap}")


@refuses
def deadlines_follow_first_tokens(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """A deadline below the first-token promise can never be of use."""
    for name, spec in contract.classes.items():
        if spec.ttft_ms and spec.deadline_ms and spec.deadline_ms < spec.ttft_ms:
            message = (
                f"the deadline {spec.deadline_ms:g} ms is before the first token is due, {spec.ttft_ms:g} ms"
            )
            yield Problem(message, f"classes.{name}.deadline_ms", "raise it above ttft_ms")


@warns
def classes_promise_something(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """A class without a promise counts nowhere in goodput."""
    for name, spec in contract.classes.items():
        if not spec.has_slo:
            message = f"class {name} promises nothing, so it counts nowhere in goodput"
            yield Problem(message, f"classes.{name}", "give ttft_ms, tpot_ms or deadline_ms")


@warns
def priorities_name_one_class(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """Triton's ``priority`` parameter is a number, and a number can mean one class only."""
    first: dict[int, str] = {}
    for name, spec in contract.classes.items():
        meant = first.setdefault(spec.priority, name)
        if meant != name:
            message = (
                f"{meant} has priority {spec.priority} too, and Triton's `priority` parameter means {meant}"
            )
            hint = "give each class its own, or let clients name the class by `x-trtkit-class`"
            yield Problem(message, f"classes.{name}.priority", hint)


CHECKS: tuple[Check, ...] = (
    backend_runs_architecture,
    experts_have_graph,
    backend_runs_attention,
    backend_runs_rope,
    backend_honours_window,
    sequence_fits_model,
    sequence_was_stretched,
    prompt_leaves_room,
    step_holds_batch,
    *LAYER_CHECKS,
    gate_has_baseline,
    *SLOT_CHECKS,
    *MEMORY_CHECKS,
    settings_have_a_user,
    source_has_the_formats,
    source_left_plain_what_it_may,
    group_size_has_kernel,
    layers_have_their_formats,
    heads_are_quantized_on_purpose,
    mixtures_are_new,
    classes_fit_engine,
    deadlines_follow_first_tokens,
    classes_promise_something,
    priorities_name_one_class,
    *PACE_CHECKS,
)
"""All checks, in the order in which their problems are listed."""
