"""One LLM request from its arrival to its single end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import Any, Protocol

import grpc.aio

from trtkit.conventions import CLASS_HEADER, SESSION_HEADER, TENANT_HEADER
from trtkit.proxy.admission import UNSIZED, Bound, Constraint, Outcome, Reason, Record, Request
from trtkit.proxy.core import Core
from trtkit.proxy.ending import OK, Caller, Ending, Facts, Refusal
from trtkit.proxy.intake import add_default_output, affinity_of, choose_class, measure, only, to_request
from trtkit.proxy.metrics import NO_CLASS
from trtkit.proxy.slo import Timeline
from trtkit.proxy.upstream import SERVICE, refusal_of
from trtkit.proxy.wire.failure import read_error
from trtkit.proxy.wire.meter import TextMeter
from trtkit.proxy.wire.request import LlmRequest
from trtkit.proxy.wire.response import Chunk, empty_final, readdress

_STOP_AGAIN_S = 0.1
"""A stop that overtook its request on the way to the engine finds nothing to stop, so it is repeated."""
_LAST_WORDS_S = 1.0
"""How long the server may take to close a stream after the final response."""

_BOUND_BY = {
    **{reason: Constraint.REQUEST for reason in Reason if reason.outcome is Outcome.INVALID},
    Reason.DRAINING: Constraint.SERVER,
    Reason.NO_BACKEND: Constraint.SERVER,
}
"""What bound a request that admission never saw, where that is known."""

log = logging.getLogger(__name__)


class Reply(Protocol):
    """Where an exchange's messages go: a client's stream, or a unary call."""

    def put(self, message: bytes) -> bool:
        """Take a message for the client; False when too much is waiting for it already."""

    async def end(self, exchange: Exchange, ending: Ending) -> None:
        """Tell the client how it ended; called exactly once."""


class Exchange:
    """Takes one request in, waits for its turn, relays it, and answers exactly once.

    The answer may come before the engine has let go: the slot is given back when the upstream call has ended.
    """

    def __init__(self, core: Core, model: str, caller: Caller, reply: Reply) -> None:
        self.model = model
        self.client_id = ""
        self.facts = Facts()
        self._core = core
        self._caller = caller
        self._reply = reply
        self._timeline = Timeline(core.clock())
        self.upstream_id = core.new_id()
        """The proxy's own id of it, which is also what the inference server knows it by."""
        self._upstream = core.fleet.upstreams[0]
        """Where it is sent, once that is decided."""
        self._call: Any = None
        self._entered = self._is_stop = False
        self._max_tokens = 0
        self._measure = TextMeter(core.counter)
        self._unconfirmed = False
        """Whether the upstream call was given up without knowing that the engine had let go."""
        self._ending: Ending | None = None
        self._over = asyncio.Event()
        """Set when nothing of the request is left, here or at the engine."""

    async def run(self, data: bytes, *, unary: bool = False) -> None:
        """Carry the request to its end."""
        self._core.live.add(self)
        try:
            ending = await self._serve(data, unary=unary)
        except Refusal as refusal:
            self._note_decision(refusal.record or self._unseen(refusal.ending.reason, refusal.bound))
            ending = refusal.ending
        except asyncio.CancelledError:
            ending = Ending(Reason.DRAINING)
        except Exception:
            log.exception("request %s failed in the proxy", self.upstream_id)
            ending = Ending(Reason.INTERNAL)
        finally:
            self._core.live.discard(self)
            self._over.set()
        await self._answer(ending)

    def cancel(self, reason: Reason = Reason.CLIENT_CANCELLED) -> None:
        """End the request early, wherever it is."""
        if self._entered:
            self._core.gate.cancel(self.upstream_id, reason)
        else:
            self._core.spawn(self._answer(Ending(reason)))

    async def _serve(self, data: bytes, *, unary: bool) -> Ending:
        call = LlmRequest(data)
        self.client_id = call.client_id
        self._is_stop = call.is_stop
        if call.is_stop:
            return self._stop_namesakes(call)
        if self._core.draining:
            raise Refusal(Reason.DRAINING)
        await self._place(await self._admit(call, unary=unary))
        try:
            return await (self._relay_unary(call) if unary else self._relay(call))
        except grpc.aio.AioRpcError as error:
            return self._upstream_failed(error)
        finally:
            if self._unconfirmed:
                await self._sit_out()
            self._core.gate.leave(self.upstream_id)

    async def _admit(self, call: LlmRequest, *, unary: bool) -> Request:
        """Check, count and size the request."""
        core, config = self._core, self._core.config
        header = only(CLASS_HEADER, self._caller.class_names)
        name = choose_class(config.classes, config.fallback_class, header, call.priority)
        promise = config.classes[name]
        self.facts.class_name = name
        tenant = only(TENANT_HEADER, self._caller.tenants) or ""
        schema = await core.fleet.schema(call.model)
        dialect = schema.need_dialect()
        streams = dialect.streams(call.tensors)
        if streams and (unary or not schema.decoupled):
            raise Refusal(
                Reason.NOT_DECOUPLED, f"model '{call.model}' is not decoupled, it answers in one piece"
            )
        add_default_output(call, promise, schema)
        schema.check(call.message)
        self._timeline.streams, self._timeline.most_tokens = streams, dialect.length.read(call) or math.inf
        core.gate.refuse_early(promise.priority, tenant)
        size = await measure(call, schema, promise, config.limits_of, core.counter)
        client_s = (
            min(self._caller.deadline_s, self._timeline.arrival_s + call.timeout_s) - self._timeline.arrival_s
        )
        request = to_request(
            *(self.upstream_id, name, promise, size),
            arrival_s=self._timeline.arrival_s,
            client_s=client_s,
            streams=streams,
            tenant=tenant,
            terms=config.terms[name],
            beams=dialect.beams(call.tensors),
            affinity=affinity_of(call, dialect, only(SESSION_HEADER, self._caller.sessions)),
        )
        self._max_tokens = self._timeline.most_tokens = size.max_tokens
        self.facts.clipped_to = size.max_tokens if size.clipped else None
        self.facts.deadline_s = request.limits.total_s
        echo = call.tensors.text(dialect.prompt) if dialect.echoes(call.tensors) else b""
        self._measure = TextMeter(core.counter, streams=streams, echo=echo)
        return request

    async def _place(self, request: Request) -> None:
        """Wait for the request's turn at a server that can be reached.

        Nothing has been sent to one that cannot, so the request may go to another, once. What was sent may have begun,
        and is never sent again.
        """
        first = await self._enter(request)
        if await self._reach():
            return
        await self._enter(request)
        self._core.metrics.redirected(first.backend or 0)
        if not await self._reach():
            raise Refusal(Reason.NO_BACKEND)

    async def _enter(self, request: Request) -> Record:
        core = self._core
        if self._ending is not None:
            raise Refusal(self._ending.reason)
        self._entered = True
        record = await core.gate.enter(request, self._abort)
        self._upstream = core.fleet.upstreams[record.backend or 0]
        self._revise(record)
        self._timeline.dispatched_s = core.clock()
        self.facts.queue_s = self._timeline.dispatched_s - self._timeline.arrival_s
        return record

    def _revise(self, record: Record) -> None:
        """Take a decision in, the first one or what it has come to."""
        if self.facts.record is None:
            self._note_decision(record)
        else:
            self.facts.record = record
            self._core.decisions.revise(record)

    async def _reach(self) -> bool:
        """Tell whether the request's server can be reached; where not, its slot is given back."""
        reached = False
        try:
            reached = await self._core.fleet.reach(self._upstream)
            if not reached and self.facts.record is not None:
                self._revise(self.facts.record._replace(backend=None, constraint=Constraint.SERVER))
        finally:
            if not reached:
                self._core.gate.leave(self.upstream_id)
        return reached

    def _note_decision(self, record: Record | None) -> None:
        if self.facts.record is None and record is not None:
            # One that was answered before it was decided on has its record already.
            self.facts.record = record
            self._core.decisions.note(record, self.client_id)

    def _unseen(self, reason: Reason, bound: Bound | None = None) -> Record:
        """Return the record of a request that admission never saw."""
        bound = bound or Bound(_BOUND_BY.get(reason, Constraint.UNSAID))
        return Record(
            id=self.upstream_id,
            class_name=self.facts.class_name or NO_CLASS,
            tenant="",
            bucket=UNSIZED,
            prompt_tokens=None,
            arrival_s=self._timeline.arrival_s,
            ahead=0,
            predicted_ttft_s=math.inf,
            constraint=bound.constraint,
            measured=bound.measured,
            threshold=bound.threshold,
            reason=reason,
        )

    async def _relay(self, call: LlmRequest) -> Ending:
        if self._ending is not None:
            return self._ending
        self._call = self._upstream.infer_stream(call.address(self.upstream_id), self._caller.metadata)
        async for data in self._call:
            chunk = Chunk(data, self._measure)
            if chunk.error:
                return await self._close(_once_sent(read_error(chunk.error)))
            self._note_tokens(chunk.tokens)
            if self._ending is None and (call.wants_empty_final or not chunk.empty):
                room = self._reply.put(chunk.address(self.client_id, self.facts.clipped_to))
                if not room:
                    self._core.gate.cancel(self.upstream_id, Reason.SLOW_READER)
            if chunk.final:
                return await self._close(OK)
        return Ending(Reason.TRUNCATED_STREAM)

    async def _relay_unary(self, call: LlmRequest) -> Ending:
        if self._ending is not None:
            return self._ending
        path, request = f"{SERVICE}ModelInfer", call.address(self.upstream_id)
        self._call = self._upstream.unary(path, request, self._caller.metadata)
        message, tokens = readdress(await self._call, self.client_id, self._measure)
        self._note_tokens(tokens)
        self._reply.put(message)
        return OK

    async def _close(self, ending: Ending) -> Ending:
        """Answer, then let the server close the stream: until then the engine may not be done."""
        await self._answer(ending)
        with contextlib.suppress(asyncio.TimeoutError, grpc.aio.AioRpcError):
            await asyncio.wait_for(self._read_rest(), _LAST_WORDS_S)
        if not self._call.done():
            self._call.cancel()
        return ending

    async def _read_rest(self) -> None:
        async for _ in self._call:
            pass

    def _note_tokens(self, tokens: int) -> None:
        if tokens == 0:
            return
        now_s, timeline = self._core.clock(), self._timeline
        self._upstream.heard_s = now_s
        if timeline.first_token_s is None:
            timeline.first_token_s = now_s
            self._core.gate.first_token(self.upstream_id, tokens)
        else:
            self._core.gate.token(self.upstream_id, tokens)
        timeline.last_token_s = now_s
        timeline.tokens += tokens

    def _abort(self, reason: Reason, pushback_ms: int | None) -> None:
        self._core.spawn(self._answer(Ending(reason, pushback_ms=pushback_ms)))
        self._core.spawn(self._stop_engine())

    async def _stop_engine(self) -> None:
        """Make the engine drop the request.

        Its stream stays open meanwhile, because only its end tells when the engine has really let go: cancelling the
        call would hide that, and does not reach a model behind an ensemble. The call is cancelled where stopping is
        not possible, and after a while for a model that does not listen to it.
        """
        give_up_s = self._core.clock() + self._core.config.stop_patience_s
        while not self._over.is_set() and self._core.clock() < give_up_s:
            if not await self._upstream.stop(self.upstream_id, self.model):
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), _STOP_AGAIN_S)
        if self._call is not None and not self._over.is_set():
            self._unconfirmed = True
            self._call.cancel()

    async def _sit_out(self) -> None:
        """Keep the slot for as long as the rest would have taken: nothing tells when the engine is done."""
        pace_s = self._timeline.tpot_s or 0.0
        rest_s = pace_s * (self._max_tokens - self._timeline.tokens)
        await asyncio.sleep(min(max(rest_s, 0.0), self._core.config.linger_s))

    def _stop_namesakes(self, call: LlmRequest) -> Ending:
        """Serve a client's own ``stop`` request, which names the other request by its id."""
        if not call.client_id:
            raise Refusal(
                Reason.INVALID_INPUT, "to stop a request, give the request id that it was sent with"
            )
        for exchange in list(self._core.live):
            if exchange is not self and exchange.client_id == call.client_id:
                exchange.cancel()
        if call.wants_empty_final:
            self._reply.put(empty_final(call.client_id, call.model))
        return OK

    def _upstream_failed(self, error: grpc.aio.AioRpcError) -> Ending:
        self._core.fleet.suspect(self._upstream)
        ending = _once_sent(refusal_of(error).ending)
        if self._timeline.first_token_s is None or ending.reason is Reason.INVALID_INPUT:
            return ending
        return Ending(Reason.UPSTREAM_ERROR, error.details() or "", code=error.code().name)

    async def _answer(self, ending: Ending) -> None:
        if self._ending is not None:
            return
        self._ending = ending
        self._timeline.ended_s = self._core.clock()
        class_name = self.facts.class_name or NO_CLASS
        self._core.metrics.observe(self.model, class_name, ending.reason, self._timeline)
        if not self._is_stop:
            if self.facts.record is None:
                self._note_decision(self._unseen(ending.reason))
            self._core.decisions.close(self.upstream_id, ending.reason, self._timeline)
        await self._reply.end(self, ending)


def _once_sent(ending: Ending) -> Ending:
    """Return the end of a request that was sent: it may have begun, so it failed, and was not refused."""
    if ending.reason is not Reason.NO_BACKEND:
        return ending
    return Ending(Reason.UPSTREAM_ERROR, ending.detail, code=ending.status)
