"""What an engine of TensorRT-LLM comes with beside its model: adapters, heads for draft tokens, a draft model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.contract import Contract, ContractFile, load_contract
from trtkit.engine.tensorrt.adapters import FILES, check_adapters
from trtkit.engine.tensorrt.heads import check_heads
from trtkit.errors import ContractError, InputError, Problem
from trtkit.flow.inputs import digests
from trtkit.plan import Plan

if TYPE_CHECKING:
    from trtkit.flow.stages import Way

_SHARED = 0.9
"""Part of what weights and buffers leave that both pools together are advised to take, as one takes it alone."""


@dataclass(frozen=True)
class Companions:
    """Folders and contracts that the contract names, found."""

    adapters: tuple[Path, ...] = ()
    heads: Path | None = None
    """Checkpoint of the model with its heads, which takes the place of the source's."""
    draft: ContractFile | None = None
    """Contract of the draft model."""
    draft_way: Way | None = None

    @classmethod
    def of(cls, file: ContractFile) -> Companions:
        """Return what a contract names, unchecked, and without the draft's way.

        Raises:
            InputError: The draft's contract cannot be read.
        """
        engine, base = file.contract.engine, file.path.parent
        asked = engine.speculation
        return cls(
            adapters=tuple((base / each).resolve() for each in engine.lora.adapters) if engine.lora else (),
            heads=(base / asked.checkpoint).resolve() if asked and asked.checkpoint else None,
            draft=load_contract(base / asked.draft) if asked and asked.draft else None,
        )

    @property
    def digests(self) -> dict[str, Any]:
        """SHA-256 of each adapter's files, in their order."""
        return {"adapters": [digests(folder / name for name in FILES) for folder in self.adapters]}

    def check(self, source: HfCheckpoint, plan: Plan) -> None:
        """Make sure that they fit the engine.

        Raises:
            ContractError: They do not; all problems of a kind are listed.
        """
        check_adapters(self.adapters, plan, source.config)
        if self.heads is not None:
            check_heads(self.heads, plan)
        if self.draft is not None and self.draft_way is not None:
            self.draft_way.check()
            problems = draft_problems(self.draft, self.draft_way.plan, plan)
            if not problems and not _same_vocabulary(self.draft_way.source, source):
                message, hint = (
                    "draft and target have different vocabularies",
                    "use a draft model of the same family",
                )
                problems = [Problem(message, "model.source", hint, str(self.draft.path))]
            if problems:
                raise ContractError(problems)


def draft_problems(file: ContractFile, draft: Plan, plan: Plan) -> list[Problem]:
    """Return what keeps a draft model from writing for another one, by the plans of both."""
    return [file.locate(Problem(*each)) for each in _draft_problems(file.contract, draft, plan)]


def _draft_problems(contract: Contract, draft: Plan, plan: Plan) -> Iterator[tuple[str, str, str]]:
    if draft.backend != plan.backend or draft.target is None or plan.target is None:
        yield f"the draft's back end is {draft.backend}", "engine.backend", f"set it to {plan.backend}"
        return
    for key, own, wanted in (
        ("engine.gpu", draft.gpu, plan.gpu),
        ("engine.trtllm", draft.target.trtllm, plan.target.trtllm),
    ):
        if own != wanted:
            yield f"the draft is for {own}, the target for {wanted}", key, f"set it to {wanted}"
    if len(contract.quantization.chain) > 1:
        yield "a draft model has one format", "quantization.fallback", "leave the key out"
    if contract.quantization.gate is not None:
        yield (
            "the target checks each token of a draft: no gate is run",
            "quantization.gate",
            "leave the key out",
        )
    if contract.engine.speculation is not None:
        yield (
            "the draft of a draft is never asked for",
            "engine.speculation",
            "leave the key out, or name another draft",
        )
    for name in ("max_batch_size", "max_seq_len"):
        have, need = getattr(draft.limits, name), getattr(plan.limits, name)
        if have < need:
            message = f"the draft takes {have}, the target {need}"
            yield message, f"engine.limits.{name}", f"at least {need}"
    need = plan.limits.max_seq_len - 1
    if not draft.target.chunked_context and draft.limits.max_num_tokens < need:
        message = (
            f"each round reads prompt and answer anew, up to {need} tokens, and a step of the draft takes"
        )
        message += f" {draft.limits.max_num_tokens} without chunked context"
        yield message, "engine.limits.max_num_tokens", f"at least {need}, or engine.chunked_context: true"
    yield from _memory_problems(draft, plan)


def _memory_problems(draft: Plan, plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Both engines are on the same GPUs, and each takes its pool from what is there when it starts."""
    parts = [each.memory for each in (draft, plan)]
    used = sum(each.weights_bytes + each.activation_bytes + each.overhead_bytes for each in parts)
    need = used + sum(each.kv_pool_bytes for each in parts)
    have = plan.memory.available_bytes
    if have is not None and need > have:
        message = f"draft and target take {need / 1e9:.1f} GB of each GPU, which has {have / 1e9:.1f}"
        # A token is in both pools.
        each, block = sum(part.kv_bytes_per_token for part in parts), plan.limits.tokens_per_block
        tokens = int(_SHARED * (have - used)) // each // block * block
        enough = tokens >= max(block, plan.limits.max_seq_len)
        fits = f"set it to {tokens} in both contracts, which leaves each its part"
        hint = fits if enough else "both do not fit: take larger or more GPUs, or smaller formats"
        yield message, "engine.kv_cache.max_tokens", hint


def _same_vocabulary(one: HfCheckpoint, other: HfCheckpoint) -> bool:
    if one.config.vocab_size != other.config.vocab_size:
        return False
    tables = [_vocabulary(each) for each in (one, other)]
    return bool(tables[0] == tables[1])


def _vocabulary(source: HfCheckpoint) -> Any:
    """Return the table of tokens, however the tokenizer cuts and joins them."""
    if source.tokenizer_file is None:
        return None
    try:
        content = json.loads(source.tokenizer_file.read_text(encoding="utf-8"))
        added = [(each["id"], each["content"]) for each in content.get("added_tokens") or ()]
        return content["model"]["vocab"], sorted(added)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"the tokenizer cannot be read: {error}", path=source.tokenizer_file) from error
