"""What is compiled, for which shapes, and the KV cache beside it."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import Field, model_validator

from trtkit.contract.formats import BackendName
from trtkit.contract.lora import Lora
from trtkit.contract.scalars import Fraction, Tokens
from trtkit.contract.section import Section
from trtkit.contract.speculation import Speculation


class Limits(Section):
    """Shapes that the engine is built for. What is left out is proposed by the plan."""

    max_batch_size: Tokens | None = None
    """Requests in one in-flight batch."""
    max_input_len: Tokens | None = None
    """Longest prompt in tokens."""
    max_seq_len: Tokens | None = None
    """Prompt plus output in tokens."""
    max_num_tokens: Tokens | None = None
    """Packed tokens per engine step."""
    max_beam_width: Annotated[int, Field(ge=1, le=64)] = 1
    """Beams of one request; GPU back ends only."""


class KvCache(Section):
    """The paged KV cache."""

    tokens_per_block: Annotated[int, Field(ge=8, le=128)] = 32
    """Block size in tokens; a power of two."""
    max_tokens: Tokens | None = None
    """Size of the pool in tokens; left out, the plan sizes it from memory."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """Most bytes of each rank's memory that the pool may take."""
    memory_fraction: Fraction = 0.9
    """Share of the memory left after weights and buffers that the pool may take."""
    enable_block_reuse: bool = True
    """Share blocks between requests with a common prefix."""

    @model_validator(mode="after")
    def _power_of_two(self) -> KvCache:
        if self.tokens_per_block & (self.tokens_per_block - 1):
            raise ValueError(f"tokens_per_block must be a power of two, got {self.tokens_per_block}")
        return self


class Engine(Section):
    """What is compiled, and for what."""

    backend: Annotated[BackendName, Field(strict=False)] = BackendName.CPU
    """Back end that compiles and runs the model."""
    gpu: str | None = None
    """Target GPU by its catalog name (``trtkit plan`` lists them); none for the CPU."""
    targets: (
        Annotated[
            list[Annotated[int, Field(ge=1)]],
            Field(min_length=1, max_length=16, examples=[[80, 86, 89, 120]]),
        ]
        | None
    ) = None
    """rtx: compute capabilities (8.9 is 89) that one engine has code for; left out, the GPU's."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share each layer."""
    pipeline_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share the stack of layers."""
    moe_expert_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Groups of tensor-parallel GPUs that the experts are spread over."""
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """tensorrt, llmapi, vllm: GPUs of a machine, over which ranks are spread; left out, 8."""
    trtllm: Annotated[str, Field(pattern=r"^\d+\.\d+$", examples=["1.2"])] | None = None
    """Release line of TensorRT-LLM to build for; left out, the newest that has the back end."""
    chunked_context: bool = True
    """Prefill a prompt in pieces of at most max_num_tokens, between steps of other requests."""
    build_flags: dict[str, bool | int | str] = Field(default_factory=dict)
    """Options of ``trtllm-build`` by name without dashes, for what the contract has no key of its own."""
    gpu_weights_fraction: Fraction | None = None
    """tensorrt, with build flag ``weight_streaming``: share of the weights that stays on the GPU; the rest comes from
    the host in every step. Left out, all of them."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Back ends cpu and onnx: threads of the engine; left out, all cores but one."""
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()
    speculation: Speculation | None = None
    """Draft tokens that a step checks together; left out, a step gives one token."""
    lora: Lora | None = None
    """Adapters that requests may name; left out, none."""

    @property
    def machine_gpus(self) -> int | None:
        """GPUs of a machine, by the key or by the flag that builders up to 0.20 have; None where nothing says."""
        flag = self.build_flags.get("gpus_per_node")
        return self.gpus_per_node or (flag if type(flag) is int and flag > 0 else None)

    @model_validator(mode="after")
    def _machines_are_known(self) -> Engine:
        if self.gpus_per_node is None:
            return self
        if self.backend not in (BackendName.TENSORRT, BackendName.LLMAPI, BackendName.VLLM):
            raise ValueError(f"gpus_per_node: back end {self.backend.value} has one rank: leave the key out")
        if self.build_flags.get("gpus_per_node", self.gpus_per_node) != self.gpus_per_node:
            raise ValueError("gpus_per_node and build_flags.gpus_per_node differ: keep the first")
        return self

    @model_validator(mode="after")
    def _targets_differ(self) -> Engine:
        if twice := [sm for sm, count in Counter(self.targets or ()).items() if count > 1]:
            raise ValueError(f"targets names {', '.join(map(str, twice))} twice: name each GPU once")
        return self
