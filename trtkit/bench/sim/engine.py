"""An engine with in-flight batching, in steps; stretches in which nothing can change are one event."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from trtkit.proxy.admission import Reason


@dataclass(frozen=True)
class EngineModel:
    """What a step costs and what fits. The defaults are declared, not measured: an 8B-class model on one large GPU.

    A step takes ``step_s + prefill tokens / prefill_tokens_per_s + sequence_s * sequences + context_s * context
    tokens``: 5.5 ms + 2048 / 28000 s = 78.6 ms for a step full of prompt. With prompts in it, it takes ``prefill_s``
    more, and what their attention takes: from token a to token b of a prompt, ``square_s * (b^2 - a^2)``; of all that
    prompts take, ``hidden_s`` costs nothing, because the weights are read meanwhile.
    """

    step_s: float = 5.5e-3
    prefill_tokens_per_s: float = 28_000.0
    sequence_s: float = 12e-6
    context_s: float = 40e-9
    max_num_tokens: int = 2048
    max_batch_size: int = 256
    kv_tokens: int = 380_000
    tokens_per_block: int = 32
    cancel_s: float = 0.1
    """How long a cancelled request goes on: the engine looks for such every 100 ms."""
    prefill_s: float = 0.0
    square_s: float = 0.0
    hidden_s: float = 0.0


class Job:
    """One request as the engine sees it, and when it got what."""

    __slots__ = (
        "answered", "arrival_s", "class_index", "constraint", "dispatched_s", "engine", "first_s", "key", "last_s",
        "left_tokens", "max_tokens", "output_tokens", "prompt_tokens", "reserved_tokens", "tenant",
    )  # fmt: skip

    def __init__(
        self,
        *,
        class_index: int,
        arrival_s: float,
        prompt_tokens: int,
        output_tokens: int,
        max_tokens: int,
        tenant: str = "",
    ) -> None:
        self.class_index = class_index
        self.arrival_s = arrival_s
        self.prompt_tokens = prompt_tokens
        self.output_tokens = min(output_tokens, max_tokens)
        self.max_tokens = max_tokens
        self.tenant = tenant
        self.left_tokens = prompt_tokens
        self.reserved_tokens = 0
        self.key = ""
        self.engine = 0
        self.answered: Reason | None = None
        """Why it was given up, if it was."""
        self.constraint = ""
        """What bound it then."""
        self.dispatched_s = math.inf
        self.first_s = math.inf
        self.last_s = math.inf


class Engine:
    """Decodes go first, then prompts in order of arrival, in chunks; a request enters when its KV reservation fits."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.busy = False
        self.end_s = math.inf
        """When the present stretch of steps ends; infinity while idle."""
        self.kv_tokens = 0
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[int, int, Job]] = []
        self._context_tokens = 0
        self._step = 0
        self._serial = 0
        self._start_s = 0.0
        self._steps = 0
        self._first_step_s = 0.0
        self._growth_s = 0.0
        self._chunked: list[Job] = []
        self._cancelled: list[tuple[float, Job]] = []

    @property
    def load(self) -> int:
        """Requests in the engine."""
        return len(self._waiting) + len(self._prefilling) + len(self._decoding)

    def submit(self, job: Job, now_s: float) -> None:
        """Take a request in; it is looked at when the step that runs now has ended."""
        job.dispatched_s = now_s
        self._waiting.append(job)
        if not self.busy:
            self._begin(now_s)
        elif self._steps > 1:
            self._cut(now_s)

    def cancel(self, job: Job, now_s: float) -> None:
        """Let a request that is in the engine go on for a while, and then end it without its answer."""
        self._cancelled.append((now_s + self.model.cancel_s, job))

    def advance(self) -> tuple[list[Job], list[Job]]:
        """End the present stretch; return whose first token came and who is complete or was cancelled."""
        now_s, decoding, first = self.end_s, self._decoding, self._chunked
        self._step += self._steps
        self._context_tokens += self._steps * len(decoding)
        done: list[Job] = []
        while decoding and decoding[0][0] <= self._step:
            job = heappop(decoding)[2]
            self._context_tokens -= job.prompt_tokens + job.output_tokens
            self._release(job, now_s, done)
        for job in first:
            job.first_s = now_s
            if job.output_tokens <= 1:
                self._release(job, now_s, done)
                continue
            self._serial += 1
            self._context_tokens += job.prompt_tokens + 1
            heappush(decoding, (self._step + job.output_tokens - 1, self._serial, job))
        if self._cancelled:
            self._drop(now_s, done)
        self._begin(now_s)
        return first, done

    def _drop(self, now_s: float, done: list[Job]) -> None:
        """End what was cancelled long enough ago and waits or is being prefilled; what decodes runs to its end."""
        for entry in [entry for entry in self._cancelled if entry[0] <= now_s]:
            self._cancelled.remove(entry)
            for queue in (self._waiting, self._prefilling):
                if entry[1] in queue:
                    queue.remove(entry[1])
                    self.kv_tokens -= entry[1].reserved_tokens
                    done.append(entry[1])

    def _release(self, job: Job, now_s: float, done: list[Job]) -> None:
        job.last_s = now_s
        self.kv_tokens -= job.reserved_tokens
        done.append(job)

    def _begin(self, now_s: float) -> None:
        """Plan the steps until the next event."""
        if self._waiting:
            self._enter()
        model, running = self.model, len(self._decoding)
        self._start_s, self._chunked = now_s, []
        base_s = (
            model.step_s
            + model.sequence_s * (running + len(self._prefilling))
            + model.context_s * self._context_tokens
        )
        if self._prefilling:
            self._steps, self.busy = 1, True
            self.end_s = now_s + base_s + self._chunk(model.max_num_tokens - running)
        elif running:
            self._steps, self.busy = self._decoding[0][0] - self._step, True
            self._first_step_s, self._growth_s = base_s, model.context_s * running
            self.end_s = now_s + self._span_s(self._steps)
        else:
            self._steps, self.busy, self.end_s = 0, False, math.inf

    def _enter(self) -> None:
        model = self.model
        while self._waiting and len(self._prefilling) + len(self._decoding) < model.max_batch_size:
            job = self._waiting[0]
            block = model.tokens_per_block
            need = -(-(job.prompt_tokens + job.max_tokens) // block) * block
            if self.kv_tokens + need > model.kv_tokens:
                return
            job.reserved_tokens = need
            self.kv_tokens += need
            self._prefilling.append(self._waiting.popleft())

    def _chunk(self, room_tokens: int) -> float:
        """Give the step's room to prompts in order; return the seconds that they take."""
        taken, squares = 0, 0
        while self._prefilling and taken < room_tokens:
            job = self._prefilling[0]
            before = job.prompt_tokens - job.left_tokens
            chunk = min(job.left_tokens, room_tokens - taken)
            job.left_tokens -= chunk
            taken += chunk
            squares += chunk * (2 * before + chunk)
            if job.left_tokens:
                break
            self._chunked.append(self._prefilling.popleft())
        model = self.model
        work_s = taken / model.prefill_tokens_per_s + model.square_s * squares
        return model.prefill_s + max(0.0, work_s - model.hidden_s)

    def _span_s(self, steps: int) -> float:
        """Return the time of so many decode steps, each longer by the tokens that the one before has added."""
        return steps * self._first_step_s + self._growth_s * steps * (steps - 1) / 2

    def _cut(self, now_s: float) -> None:
        """End a stretch of decode steps at the first step boundary from ``now_s`` on."""
        elapsed_s, growth_s = now_s - self._start_s, self._growth_s
        linear = self._first_step_s - growth_s / 2
        # Solves growth / 2 * n^2 + linear * n = elapsed, in the form that is exact for growth -> 0.
        steps = math.ceil(
            2 * elapsed_s / (linear + math.sqrt(linear * linear + 2 * growth_s * elapsed_s)) - 1e-9
        )
        self._steps = min(self._steps, max(1, steps))
        self.end_s = self._start_s + self._span_s(self._steps)
