"""The engine: one thread that admits, cancels, steps and hands out."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from trtkit.engine.inflight.admission import refusal
from trtkit.engine.inflight.generation import Generation, Phase, Workshop, deliver
from trtkit.engine.inflight.limits import Limits
from trtkit.engine.inflight.pipeline import reason
from trtkit.engine.inflight.request import EngineStats, FinishReason, GenerationRequest, OnTokens, TokenChunk
from trtkit.errors import InputError

_log = logging.getLogger(__name__)

YIELD_S = 0.0002
"""Pause after a step. It may hold Python's lock, so without it other threads would wait for the end of the next one:
10 ms and more. Long enough for a thread to wake up, 1-2 % of a step."""
SETTLE_SHARE = 0.25
"""The most that passing on its tokens may add to a step. 16 streams on one core: 16 sends in a step of 80 ms."""

_Command = Callable[[], None]


class InflightEngine:
    """In-flight batching over one pipeline. Its methods may be called from any thread.

    ``settle`` is called after each step with the seconds that it may take at most, and returns when the tokens that
    were handed out have been passed on. Without it they pile up behind the steps, and arrive in bursts.
    """

    def __init__(
        self, workshop: Workshop, limits: Limits, *, settle: Callable[[float], None] | None = None
    ) -> None:
        self._settle = settle
        self._limits = limits
        self._workshop = workshop
        self._pipeline = workshop.pipeline
        self._live: dict[str, Generation] = {}
        self._stats = EngineStats(kv_blocks_max=limits.kv_blocks, tokens_per_block=limits.tokens_per_block)
        self._inbox: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self.failure = ""
        """Why the engine can run nothing any more; empty while it can."""
        self._thread = threading.Thread(target=self._run, name="trtkit-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, on_tokens: OnTokens) -> None:
        """Queue a request. Everything about it, refusals too, comes as chunks to ``on_tokens``."""
        with self._lock:
            if not self._closed:
                self._inbox.put(partial(self._admit, request, on_tokens))
                return
        _refuse(on_tokens, "the engine is closed")

    def cancel(self, request_id: str) -> None:
        """End a live request with a CANCELLED chunk; unknown ids are ignored."""
        self._inbox.put(partial(self._cancel, request_id))

    def stats(self) -> EngineStats:
        """Return the load after the last step."""
        return self._stats

    def close(self) -> None:
        """Cancel what is live and stop the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._obey():
            self._step()
        for generation in self._live.values():
            generation.end(FinishReason.CANCELLED, "the engine was closed")
        self._live.clear()
        while self._pipeline.busy and not self.failure:
            self._step()  # until their blocks are free

    def _obey(self) -> bool:
        """Carry out the commands that have come; wait for one when there is nothing to do. False at the end."""
        idle = not self._live and (bool(self.failure) or not self._pipeline.busy)
        try:
            command = self._inbox.get(block=idle)
            while command is not None:
                command()
                command = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False

    def _admit(self, request: GenerationRequest, on_tokens: OnTokens) -> None:
        message = self.failure or refusal(request, self._limits)
        if request.request_id in self._live:
            message = f"a request with id {request.request_id!r} is still running"
        if message:
            _refuse(on_tokens, message)
            return
        try:
            self._live[request.request_id] = Generation(request, on_tokens, self._workshop)
        except InputError as error:
            _refuse(on_tokens, error.message)

    def _cancel(self, request_id: str) -> None:
        generation = self._live.pop(request_id, None)
        if generation is not None:
            generation.end(FinishReason.CANCELLED)

    def _step(self) -> None:
        self._let_in()
        started_s = time.monotonic()
        try:
            if self._pipeline.busy:
                self._pipeline.step()
        except Exception as error:
            self._fail(reason(error))
        for generation in self._live.values():
            self._alone(generation, generation.advance)
        self._live = {key: live for key, live in self._live.items() if live.phase is not Phase.ENDED}
        waiting = sum(live.phase is Phase.WAITING for live in self._live.values())
        self._stats = replace(
            self._stats,
            active=len(self._live) - waiting,
            waiting=waiting,
            kv_blocks_used=self._pipeline.blocks_used,
        )
        if self._settle is not None:
            self._settle(SETTLE_SHARE * (time.monotonic() - started_s))
        time.sleep(YIELD_S)

    def _let_in(self) -> None:
        """Let waiting requests into the pipeline, in order of arrival, up to the first that finds no room."""
        for generation in self._live.values():
            if generation.phase is Phase.WAITING and not self._alone(generation, generation.enter):
                break

    def _alone(self, generation: Generation, act: Callable[[], object]) -> object:
        """Do one request's part of a step; what goes wrong in it ends that request and no other."""
        try:
            return act()
        except InputError as error:
            generation.end(FinishReason.ERROR, error.message)
            return error
        except Exception as error:
            _log.exception("request %s failed", generation.request.request_id)
            generation.end(FinishReason.ERROR, reason(error))
            return error

    def _fail(self, message: str) -> None:
        """Give up: after an error inside a step the pipeline's state is unknown."""
        _log.error("the engine failed: %s", message)
        self.failure = f"the engine failed: {message}"
        for generation in self._live.values():
            if not generation.ended:
                generation.end(FinishReason.ERROR, self.failure)


def _refuse(on_tokens: OnTokens, message: str) -> None:
    deliver(on_tokens, TokenChunk(finish_reason=FinishReason.ERROR, message=message))
