"""Lengths of slots that the runner of a graph would refuse once everything is built."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses
from trtkit.plan.kv import ALIGNMENT_BYTES, MOST_SLOT_TOKENS
from trtkit.plan.memory import slot_unit
from trtkit.plan.types import Plan

_KEY = "engine.limits.max_seq_len"


@refuses
def slots_start_aligned(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """TensorRT reads a cache from an aligned address, and a slot's is an offset into that of all slots."""
    unit, tokens = slot_unit(contract, model), plan.limits.max_seq_len
    if tokens % unit:
        message = f"slots of {tokens} tokens do not all start at a multiple of {ALIGNMENT_BYTES} bytes"
        near = (tokens // unit * unit, -(-tokens // unit) * unit)
        fits = [str(each) for each in near if 0 < each <= max(tokens, model.max_position_embeddings)]
        yield Problem(message, _KEY, f"make it a multiple of {unit}: {' or '.join(fits)}".rstrip(": "))


@refuses
def slots_have_angles(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A graph has its angles in tables, of as many positions as float32 tells apart."""
    if BACKENDS[plan.backend].cache_per_slot and plan.limits.max_seq_len > MOST_SLOT_TOKENS:
        yield Problem("is longer than a graph's tables of angles may be", _KEY, f"at most {MOST_SLOT_TOKENS}")


@refuses
def slots_hold_what_judges(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """The quality gate reads its samples through the graph, each in one slot."""
    gate, room = contract.quantization.gate, plan.limits.max_seq_len
    if gate is None or not BACKENDS[plan.backend].cache_per_slot or "engine" not in (gate.on or ("engine",)):
        return
    if gate.sample_tokens > room:
        message = f"samples of {gate.sample_tokens} tokens do not fit a slot of {room} ({_KEY})"
        yield Problem(message, "quantization.gate.sample_tokens", f"at most {room}, or gate.on: [checkpoint]")


SLOT_CHECKS = (slots_start_aligned, slots_have_angles, slots_hold_what_judges)
