"""Promises against what the engine can do."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import warns
from trtkit.plan.types import ClassPace, Plan


@warns
def promises_can_be_kept(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A promise that one request alone would break is broken by every request."""
    for each in plan.pace.classes if plan.pace else ():
        yield from _late(each, plan.pace.source if plan.pace else "")


def _late(pace: ClassPace, source: str) -> Iterator[Problem]:
    key = f"classes.{pace.name}"
    if pace.promised_ttft_ms is not None and pace.ttft_ms > pace.promised_ttft_ms:
        message = f"a prompt of {pace.prompt_tokens} tokens takes {pace.ttft_ms:.0f} ms to its first token ({source})"
        hint = (
            "promise more time, lower max_prompt_tokens, or take more or faster GPUs (trtkit plan --compare)"
        )
        yield Problem(message, f"{key}.ttft_ms", hint)
    if pace.promised_deadline_ms is not None and pace.total_ms > pace.promised_deadline_ms:
        message = f"the usual answer to the longest prompt takes {pace.total_ms:.0f} ms ({source})"
        hint = "promise more time, lower default_output_tokens, or give tpot_ms: then fewer run at once"
        yield Problem(message, f"{key}.deadline_ms", hint)
    if pace.promised_tpot_ms is not None and pace.tpot_ms > pace.promised_tpot_ms:
        message = f"a token takes {pace.tpot_ms:.1f} ms even alone ({source})"
        yield Problem(message, f"{key}.tpot_ms", "promise more time, or take a smaller format or more GPUs")


PACE_CHECKS = (promises_can_be_kept,)
