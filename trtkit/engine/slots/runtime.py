"""The engine of a folder that holds a graph with slots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trtkit.engine.inflight.engine import InflightEngine
from trtkit.engine.inflight.generation import Workshop
from trtkit.engine.inflight.vocabulary import TextVocabulary
from trtkit.engine.slots.executor import Executor
from trtkit.engine.slots.folder import SlotFolder
from trtkit.engine.slots.pipeline import SlotPipeline
from trtkit.engine.slots.scheduler import Scheduler


class SlotEngine(InflightEngine):
    """In-flight batching over slots."""

    def __init__(
        self,
        engine_dir: Path,
        tokenizer_path: Path | None = None,
        *,
        settle: Callable[[float], None] | None = None,
    ) -> None:
        folder = SlotFolder.open(engine_dir)
        spec = folder.spec
        scheduler = Scheduler(spec.slots, spec.capacity_tokens, spec.chunk_tokens)
        vocabulary = TextVocabulary.open(tokenizer_path) if tokenizer_path else None
        self._executor = open_executor(folder)
        pipeline = SlotPipeline(scheduler, self._executor, folder.limits)
        super().__init__(Workshop(pipeline, vocabulary), folder.limits, settle=settle)

    def close(self) -> None:
        """Cancel what is live, stop the thread and let the executor go."""
        super().close()
        self._executor.close()


def open_executor(folder: SlotFolder) -> Executor:
    """Load the graph of an engine folder."""
    if folder.backend == "rtx":
        from trtkit.engine.slots.rtx import RtxExecutor

        return RtxExecutor(folder)
    from trtkit.engine.slots.ort import OrtExecutor

    return OrtExecutor(folder)
