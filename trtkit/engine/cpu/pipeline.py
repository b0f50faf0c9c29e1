"""OpenVINO GenAI's continuous batching, opened from an engine folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trtkit.engine.cpu.folder import EngineFolder
from trtkit.engine.cpu.sampling import pipeline_config
from trtkit.engine.inflight.pipeline import Draw, reason
from trtkit.engine.inflight.request import GenerationRequest
from trtkit.engine.inflight.stops import Token
from trtkit.errors import StageError


class Decoding:
    """One sequence in the pipeline."""

    def __init__(self, handle: Any, prompt_tokens: int, blocks: int) -> None:
        self._handle = handle
        self._leaving = False
        self.prompt_tokens = prompt_tokens
        self.blocks = blocks
        """Reserved for its whole length, prompt and output."""
        self.prefilled = False

    def read(self, draw: Draw) -> Iterator[Token]:  # noqa: ARG002 - OpenVINO GenAI has a sampler of its own
        """Yield the tokens of the steps since the last call; an end token is one of them."""
        while self._handle.can_read():
            for output in self._handle.read().values():
                for token, log_prob in zip(output.generated_ids, output.generated_log_probs, strict=True):
                    yield Token(token, log_prob)

    @property
    def dropped(self) -> bool:
        """Whether the pipeline gave up on it for want of blocks."""
        return bool(self._handle.get_status().name == "IGNORED")

    @property
    def running(self) -> bool:
        """Whether the pipeline still works on it."""
        return bool(self._handle.get_status().name == "RUNNING")

    def leave(self) -> None:
        """Leave the batch: at once, or when the prompt is done.

        Seen with OpenVINO GenAI 2026.4 and prefix reuse: after a cancel between two pieces of a prompt, the same
        prompt gets another answer later, as if a block were reused that was never filled.
        """
        self._leaving = True
        if self.prefilled:
            self._handle.cancel()

    def settle(self) -> None:
        """Note what the last step did."""
        self.prefilled = self.prefilled or self._handle.can_read()
        if self._leaving:
            self.leave()


class Pipeline:
    """The batch. Not thread-safe, and a step holds Python's lock until it is done."""

    def __init__(self, folder: EngineFolder) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = folder.limits.kv_blocks
        scheduler.max_num_seqs = folder.limits.max_batch_size
        scheduler.max_num_batched_tokens = folder.limits.max_num_tokens
        scheduler.enable_prefix_caching = folder.enable_block_reuse
        scheduler.dynamic_split_fuse = True  # long prompts are prefilled in pieces, beside running requests
        try:
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                str(folder.path), scheduler, "CPU", folder.properties
            )
        except RuntimeError as error:
            hint = "build the engine again on this machine; it must run OpenVINO 2026.4"
            raise StageError(
                f"OpenVINO cannot load it: {reason(error)}", path=folder.path, hint=hint
            ) from error
        self._limits = folder.limits
        self._inside: list[Decoding] = []
        self._num_added = 0

    @property
    def busy(self) -> bool:
        """Whether a step has work to do; a sequence that leaves is work until its blocks are freed."""
        return bool(self._pipeline.has_non_finished_requests())

    @property
    def blocks_used(self) -> int:
        """Blocks held by sequences in the last step; shared ones count once, merely cached ones not at all."""
        if not self._inside:
            return 0
        return round(float(self._pipeline.get_metrics().cache_usage) / 100 * self._limits.kv_blocks)

    def has_room(self, request: GenerationRequest, generated: Sequence[int]) -> bool:
        """Tell whether a request can enter and surely finish, as TensorRT-LLM's ``guaranteed_no_evict`` does.

        The pipeline would take more and evict later, but with prefix reuse a sequence that was evicted can come
        out different (OpenVINO GenAI 2026.4: 7 of 60 on a pool of 24 blocks). Prompts enter one step's worth at
        a time, so that one that waits can still be cancelled for nothing.
        """
        prompt_tokens = len(request.input_ids) + len(generated)
        prefilling = sum(decoding.prompt_tokens for decoding in self._inside if not decoding.prefilled)
        reserved = sum(decoding.blocks for decoding in self._inside)
        return (
            len(self._inside) < self._limits.max_batch_size
            and reserved + self._blocks(request) <= self._limits.kv_blocks
            and (not prefilling or prefilling + prompt_tokens <= self._limits.max_num_tokens)
        )

    def enter(self, request: GenerationRequest, generated: Sequence[int] = ()) -> Decoding:
        """Add a request that goes on after ``generated`` tokens; raise RuntimeError on what it cannot take."""
        import openvino as ov

        self._num_added += 1
        prompt = np.array([[*request.input_ids, *generated]], dtype=np.int64)
        config = pipeline_config(request, len(generated))
        handle = self._pipeline.add_request(self._num_added, ov.Tensor(prompt), config)
        self._inside.append(Decoding(handle, prompt.size, self._blocks(request)))
        return self._inside[-1]

    def step(self) -> None:
        """Run one packed batch: at most one token per sequence."""
        self._pipeline.step()
        self._inside = [decoding for decoding in self._inside if decoding.running]
        for decoding in self._inside:
            decoding.settle()

    def _blocks(self, request: GenerationRequest) -> int:
        return self._limits.blocks_for(len(request.input_ids) + request.max_tokens)


def probe(folder: EngineFolder) -> None:
    """Generate one token with the smallest pool; raise RuntimeError if the model cannot be paged."""
    pipeline = Pipeline(replace(folder, limits=replace(folder.limits, kv_blocks=2)))
    pipeline.enter(GenerationRequest("probe", input_ids=[0, 0], max_tokens=1))
    pipeline.step()
