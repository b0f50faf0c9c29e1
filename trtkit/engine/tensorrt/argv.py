"""The arguments of ``trtllm-build`` for a plan: only those that differ from their default in its release line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from trtkit.catalog.trtllm import FLAGS, Flag
from trtkit.errors import StageError
from trtkit.plan.types import Plan, Target

BUILDER, REFITTER = "trtllm-build", "trtllm-refit"
Value = bool | int | str | tuple[str, ...]


def target_of(plan: Plan) -> Target:
    """Return the plan's target, which every plan for this back end has.

    Raises:
        StageError: It is a plan for another back end.
    """
    if plan.target is None or plan.target.trtllm is None:
        raise StageError(f"the plan for {plan.backend} names no release line of TensorRT-LLM")
    return plan.target


def build_argv(
    plan: Plan, checkpoint: Path, out: Path, *, adapters: tuple[Path, ...] = (), workers: int | None = None
) -> tuple[str, ...]:
    """Return the command that builds all ranks.

    Ranks are built one after another on the first GPU unless there are ``workers``; the plan's own ``workers`` flag
    goes before that.
    """
    flags = flags_of(plan)
    if adapters:
        flags["lora_dir"] = tuple(map(str, adapters))
    if workers is not None:
        flags.setdefault("workers", workers)
    line = target_of(plan).trtllm or ""
    folders = ("--checkpoint_dir", str(checkpoint), "--output_dir", str(out))
    return (BUILDER, *folders, *(word for name in FLAGS for word in _words(FLAGS[name], flags, line)))


def refit_argv(checkpoint: Path, stripped: Path, out: Path) -> tuple[str, ...]:
    """Return the command that puts the checkpoint's weights into a stripped engine."""
    folders = {"--checkpoint_dir": checkpoint, "--engine_dir": stripped, "--output_dir": out}
    return (REFITTER, *(word for name, folder in folders.items() for word in (name, str(folder))))


def flags_of(plan: Plan) -> dict[str, Value]:
    """Return what the builder is asked for, by flag: the plan's shapes, and what the contract gives beside them."""
    target, limits = target_of(plan), plan.limits
    return {
        "max_batch_size": limits.max_batch_size,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_seq_len,
        "max_num_tokens": limits.max_num_tokens,
        "max_beam_width": target.max_beam_width,
        "tokens_per_block": limits.tokens_per_block,
        **target.build_flags,
    }


def _words(flag: Flag, flags: Mapping[str, Value], line: str) -> Iterator[str]:
    value = flags.get(flag.name, flag.default)
    if value == flag.default and type(value) is type(flag.default):
        return
    if not flag.in_line(line):
        hint = f"lines {flag.since} to {flag.until} have it: leave it out of engine.build_flags"
        raise StageError(f"trtllm-build of {line} has no --{flag.name}", hint=hint)
    yield f"--{flag.name}"
    if isinstance(value, tuple):
        yield from value
    elif flag.kind is list:
        yield from str(value).split()
    elif value is not True:
        yield str(value)
