"""Which slot does what in the next step: pure, it knows tokens and lengths and no model."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field


class State(enum.Enum):
    """What a slot waits for."""

    FREE = enum.auto()
    """A request."""
    PREFILLING = enum.auto()
    """The rest of its prompt to be run."""
    CHOOSING = enum.auto()
    """A token to be drawn from its logits."""
    DECODING = enum.auto()
    """The token drawn last to be run."""


@dataclass(eq=False)
class Slot:
    """One row of the batch, with a cache of its own. Only the scheduler changes it."""

    index: int
    state: State = State.FREE
    length: int = 0
    """Tokens in its cache."""
    pending: Sequence[int] = ()
    """Tokens of the request to be run next."""


@dataclass(frozen=True)
class Chunk:
    """A piece of one slot's prompt."""

    slot: Slot
    tokens: Sequence[int]
    start: int


@dataclass(frozen=True)
class Rows:
    """One token for each of the slots from ``first`` on."""

    first: int
    tokens: Sequence[int]
    lengths: Sequence[int]
    slots: Sequence[Slot]
    """Those whose logits are wanted; the rest writes a token that nothing will read."""


@dataclass(frozen=True)
class Step:
    """Chunks to be run in their order, and then the rows. Slots that are CHOOSING now want the logits."""

    chunks: Sequence[Chunk] = ()
    rows: Rows | None = None


@dataclass
class Scheduler:
    """The slots of one engine."""

    num_slots: int
    capacity_tokens: int
    chunk_tokens: int
    """Of a chunk, and of all chunks of one step: what decoding slots wait for at most."""
    slots: list[Slot] = field(init=False)
    _prefilling: list[Slot] = field(init=False, default_factory=list)
    """In order of arrival."""

    def __post_init__(self) -> None:
        self.slots = [Slot(index) for index in range(self.num_slots)]

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return any(slot.state is State.FREE for slot in self.slots)

    def admit(self, prompt: Sequence[int]) -> Slot:
        """Take the first free slot, so that those in use stay together; there must be one."""
        if not 0 < len(prompt) <= self.capacity_tokens:
            raise ValueError(f"{len(prompt)} tokens for a slot of {self.capacity_tokens}")
        slot = next(slot for slot in self.slots if slot.state is State.FREE)
        slot.state, slot.pending = State.PREFILLING, prompt
        self._prefilling.append(slot)
        return slot

    def free(self, slot: Slot) -> None:
        """Give a slot back; its cache may hold anything then."""
        if slot.state is State.PREFILLING:
            self._prefilling.remove(slot)
        slot.state, slot.length, slot.pending = State.FREE, 0, ()

    def feed(self, slot: Slot, token: int) -> None:
        """Note the token that was drawn from a slot's logits."""
        if slot.state is not State.CHOOSING or slot.length == self.capacity_tokens:
            raise ValueError(f"slot {slot.index} with {slot.length} tokens is {slot.state.name}")
        slot.state, slot.pending = State.DECODING, (token,)

    def next_step(self) -> Step:
        """Return the next step and take it for done."""
        return Step(self._next_chunks(), self._next_rows())

    def _next_chunks(self) -> list[Chunk]:
        """Return pieces of the prompts that came first.

        A piece is never made smaller to fit beside others: where a prompt is cut depends on nothing but its length.
        """
        chunks: list[Chunk] = []
        left = self.chunk_tokens
        while self._prefilling:
            slot = self._prefilling[0]
            tokens = slot.pending[: self.chunk_tokens]
            if len(tokens) > left:
                break
            left -= len(tokens)
            chunks.append(Chunk(slot, tokens, slot.length))
            slot.pending = slot.pending[len(tokens) :]
            slot.length += len(tokens)
            if not slot.pending:
                slot.state = State.CHOOSING
                self._prefilling.pop(0)
        return chunks

    def _next_rows(self) -> Rows | None:
        decoding = [slot for slot in self.slots if slot.state is State.DECODING]
        if not decoding:
            return None
        span = self.slots[decoding[0].index : decoding[-1].index + 1]
        rows = Rows(
            first=span[0].index,
            tokens=[slot.pending[0] if slot in decoding else 0 for slot in span],
            lengths=[min(slot.length, self.capacity_tokens - 1) for slot in span],
            slots=decoding,
        )
        for slot in decoding:
            slot.length += 1
            slot.state, slot.pending = State.CHOOSING, ()
        return rows
