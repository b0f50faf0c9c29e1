"""What an engine folder's ``config.json`` says of the requests that its engine can take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trtkit
from trtkit.plan.types import Plan


def engine_config(
    pretrained_config: Mapping[str, Any], plan: Plan, runtime: Mapping[str, Any], *, enable_block_reuse: bool
) -> dict[str, Any]:
    """Return an engine's ``config.json``, in TensorRT-LLM's form; :meth:`Limits.read` reads it back."""
    limits = plan.limits
    return {
        "version": trtkit.__version__,
        "backend": plan.backend,
        "pretrained_config": dict(pretrained_config),
        "build_config": {
            "max_batch_size": limits.max_batch_size,
            "max_input_len": limits.max_input_len,
            "max_seq_len": limits.max_seq_len,
            "max_num_tokens": limits.max_num_tokens,
            "max_beam_width": 1,
            "tokens_per_block": limits.tokens_per_block,
            "kv_blocks": plan.memory.kv_blocks,
            "enable_block_reuse": enable_block_reuse,
        },
        "runtime": dict(runtime),
    }


@dataclass(frozen=True)
class Limits:
    """The shapes that an engine was compiled for."""

    vocab_size: int
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    tokens_per_block: int
    kv_blocks: int
    """Blocks of the KV cache; requests reserve whole ones."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Limits:
        """Read them; raise KeyError or TypeError where one is missing."""
        build = config["build_config"]
        return cls(
            vocab_size=config["pretrained_config"]["vocab_size"],
            max_batch_size=build["max_batch_size"],
            max_input_len=build["max_input_len"],
            max_seq_len=build["max_seq_len"],
            max_num_tokens=build["max_num_tokens"],
            tokens_per_block=build["tokens_per_block"],
            kv_blocks=build["kv_blocks"],
        )

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold this many tokens of one sequence."""
        return -(-num_tokens // self.tokens_per_block)
