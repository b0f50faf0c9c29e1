"""OpenVINO GenAI's continuous batching, opened from an engine folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtkit.engine.cpu.folder import EngineFolder
from trtkit.engine.cpu.request import GenerationRequest
from trtkit.engine.cpu.sampling import pipeline_config
from trtkit.engine.cpu.stops import Token
from trtkit.errors import StageError


@dataclass(frozen=True)
class Load:
    """What the last step worked on."""

    sequences: int = 0
    blocks: int = 0


class Decoding:
    """One sequence in the pipeline."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def read(self) -> Iterator[Token]:
        """Yield the tokens of the steps since the last call; an end token is one of them."""
        while self._handle.can_read():
            for output in self._handle.read().values():
                for token, log_prob in zip(output.generated_ids, output.generated_log_probs, strict=True):
                    yield Token(token, log_prob)

    @property
    def dropped(self) -> bool:
        """Whether the pipeline gave up: the sequence alone has outgrown the KV pool."""
        return bool(self._handle.get_status().name == "IGNORED")

    def cancel(self) -> None:
        """Leave the batch; blocks are freed in the next step."""
        self._handle.cancel()


class Pipeline:
    """The batch. Not thread-safe, and a step holds Python's lock until it is done."""

    def __init__(self, folder: EngineFolder) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = folder.kv_blocks
        scheduler.max_num_seqs = folder.max_batch_size
        scheduler.max_num_batched_tokens = folder.max_num_tokens
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
        self._blocks = folder.kv_blocks
        self._num_added = 0

    @property
    def busy(self) -> bool:
        """Whether a step has work to do; a cancelled sequence is work until its blocks are freed."""
        return bool(self._pipeline.has_non_finished_requests())

    def add(self, request: GenerationRequest, generated: Sequence[int] = ()) -> Decoding:
        """Queue a request that goes on after ``generated`` tokens; raise RuntimeError on what it cannot take."""
        import openvino as ov

        self._num_added += 1
        prompt = np.array([[*request.input_ids, *generated]], dtype=np.int64)
        config = pipeline_config(request, len(generated))
        return Decoding(self._pipeline.add_request(self._num_added, ov.Tensor(prompt), config))

    def step(self) -> None:
        """Run one packed batch: at most one token per sequence."""
        self._pipeline.step()

    def load(self) -> Load:
        """Return what the last step worked on."""
        metrics = self._pipeline.get_metrics()
        return Load(metrics.scheduled_requests, round(metrics.cache_usage / 100 * self._blocks))


def probe(folder: EngineFolder) -> float:
    """Generate one token with the smallest pool; return its log-probability."""
    pipeline = Pipeline(replace(folder, kv_blocks=2))
    request = GenerationRequest("probe", input_ids=[0, 0], max_tokens=1, return_log_probs=True)
    decoding = pipeline.add(request)
    while pipeline.busy:
        pipeline.step()
    return next(token.log_prob for token in decoding.read())


def reason(error: BaseException) -> str:
    """Return the last line of one of OpenVINO's errors; those before name its source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
