"""The engine of the CPU back end, from its folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from trtkit.engine.cpu.folder import EngineFolder
from trtkit.engine.cpu.oracle import Oracle, OracleSession
from trtkit.engine.cpu.pipeline import Pipeline
from trtkit.engine.inflight.engine import InflightEngine
from trtkit.engine.inflight.generation import Workshop
from trtkit.engine.inflight.vocabulary import TextVocabulary


class CpuEngine(InflightEngine):
    """OpenVINO GenAI's continuous batching, and beside it the same model for tokens that it cannot choose."""

    def __init__(
        self,
        engine_dir: Path,
        tokenizer_path: Path | None = None,
        *,
        settle: Callable[[float], None] | None = None,
    ) -> None:
        self._folder = EngineFolder.open(engine_dir)
        vocabulary = TextVocabulary.open(tokenizer_path) if tokenizer_path else None
        workshop = Workshop(Pipeline(self._folder), vocabulary, self._open_oracle)
        super().__init__(workshop, self._folder.limits, settle=settle)

    @cached_property
    def _oracle(self) -> Oracle:
        return Oracle(self._folder.model_file, self._folder.properties)

    def _open_oracle(self) -> OracleSession:
        return self._oracle.open()
