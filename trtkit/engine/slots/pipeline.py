"""The batch of slots: what the scheduler says, done by an executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trtkit.engine.graph.spec import Phase
from trtkit.engine.inflight.limits import Limits
from trtkit.engine.inflight.pipeline import Draw, Logits
from trtkit.engine.inflight.request import GenerationRequest
from trtkit.engine.inflight.stops import Token
from trtkit.engine.slots.executor import Batch, Executor
from trtkit.engine.slots.scheduler import Scheduler, Slot, State


class SlotDecoding:
    """One sequence in its slot."""

    dropped = False

    def __init__(self, scheduler: Scheduler, slot: Slot) -> None:
        self._scheduler = scheduler
        self._slot = slot
        self.logits: Logits | None = None
        """Of the last step, until a token is drawn from them."""

    def read(self, draw: Draw) -> Iterator[Token]:
        """Draw the token of the last step, if there is one, and have it run in the next."""
        if self.logits is not None:
            token = draw(self.logits)
            self.logits = None
            self._scheduler.feed(self._slot, token.id)
            yield token

    def leave(self) -> None:
        """Free the slot at once."""
        self._scheduler.free(self._slot)


class SlotPipeline:
    """The batch. Not thread-safe."""

    def __init__(self, scheduler: Scheduler, executor: Executor, limits: Limits) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._limits = limits
        self._inside: dict[Slot, SlotDecoding] = {}
        self._spoilt: set[Slot] = set()

    @property
    def busy(self) -> bool:
        """Whether a slot is in use."""
        return any(slot.state is not State.FREE for slot in self._scheduler.slots)

    @property
    def blocks_used(self) -> int:
        """Blocks that tokens fill. The rest of a slot is counted as free, though nobody else can have it."""
        return sum(self._limits.blocks_for(slot.length) for slot in self._scheduler.slots)

    def has_room(self, request: GenerationRequest, generated: Sequence[int]) -> bool:  # noqa: ARG002
        """Tell whether a slot is free: each has room for any request that was admitted."""
        return self._scheduler.has_room

    def enter(self, request: GenerationRequest, generated: Sequence[int]) -> SlotDecoding:
        """Put a request into a slot."""
        slot = self._scheduler.admit([*request.input_ids, *generated])
        if slot in self._spoilt:
            self._executor.clear(slot.index)
            self._spoilt.remove(slot)
        self._inside[slot] = SlotDecoding(self._scheduler, slot)
        return self._inside[slot]

    def step(self) -> None:
        """Run pieces of prompts, then one token of every sequence that decodes."""
        step = self._scheduler.next_step()
        for chunk in step.chunks:
            logits = self._executor.run(Batch(Phase.PREFILL, chunk.slot.index, [chunk.tokens], [chunk.start]))
            self._hand_out(chunk.slot, logits[0])
        if step.rows is not None:
            rows = step.rows
            logits = self._executor.run(
                Batch(Phase.DECODE, rows.first, [[token] for token in rows.tokens], rows.lengths)
            )
            for slot in rows.slots:
                self._hand_out(slot, logits[slot.index - rows.first])

    def _hand_out(self, slot: Slot, logits: Logits) -> None:
        if not np.isfinite(logits.max()):
            # An overflow left NaN in the caches. Masked it counts zero times NaN, which is NaN, for whoever is next.
            self._spoilt.add(slot)
        if slot.state is State.CHOOSING:
            self._inside[slot].logits = logits
