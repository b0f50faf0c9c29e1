"""How many GPUs hold a model, and what each of them holds."""

from __future__ import annotations

from dataclasses import dataclass

GPUS_PER_NODE = 8
"""What TensorRT-LLM takes a machine to have where nothing says otherwise."""


@dataclass(frozen=True)
class Parallelism:
    """Ranks of tensor, pipeline and expert parallelism.

    Rank ``pp_rank * tp + tp_rank`` reads ``rank{r}.safetensors``. Experts are spread over ``moe_ep`` groups of tensor
    parallel ranks, and inside a group each expert is divided by ``moe_tp``; ``moe_tp * moe_ep == tp``.
    """

    tp: int = 1
    pp: int = 1
    moe_ep: int = 1
    parallel_embedding: bool = False
    """Whether the ranks share the embedding by rows of the vocabulary; otherwise each holds all of it."""
    gpus_per_node: int = GPUS_PER_NODE
    """GPUs of a machine: rank 5 is on GPU 1 of the second one where there are 4."""

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp

    @property
    def nodes(self) -> int:
        """Machines that the ranks are spread over: 16 ranks are on two of 8 GPUs."""
        return -(-self.world // self.gpus_per_node)

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert."""
        return self.tp // self.moe_ep


ONE_RANK = Parallelism()
