"""Slots under any order of arrivals, cancellations and steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.slots.recorder import RecorderExecutor, continuation
from trtkit.engine.graph.spec import Phase as Profile
from trtkit.engine.inflight.generation import Generation, Phase, Workshop
from trtkit.engine.inflight.limits import Limits
from trtkit.engine.inflight.request import FinishReason, GenerationRequest
from trtkit.engine.slots.pipeline import SlotPipeline
from trtkit.engine.slots.scheduler import Scheduler, State


class Slots(RuleBasedStateMachine):
    """The engine's loop by hand, over an executor that notices every token that is not where it should be."""

    @initialize(slots=st.integers(1, 5), capacity=st.integers(2, 24), chunk=st.integers(1, 9))
    def open(self, slots, capacity, chunk):
        self.capacity, self.chunk = capacity, min(chunk, capacity)
        self.executor = RecorderExecutor(slots, capacity)
        self.scheduler = Scheduler(slots, capacity, self.chunk)
        limits = Limits(50, slots, capacity, capacity, chunk, 4, slots * -(-capacity // 4))
        self.pipeline = SlotPipeline(self.scheduler, self.executor, limits)
        self.live, self.said, self.ends = [], {}, {}
        self.first_tokens = []

    @rule(data=st.data())
    def submit(self, data):
        size = data.draw(st.integers(1, self.capacity - 1))
        prompt = data.draw(st.lists(st.integers(0, 49), min_size=size, max_size=size))
        request = GenerationRequest(
            f"{len(self.said)}", prompt, data.draw(st.integers(1, self.capacity - size))
        )
        self.said[request.request_id] = []
        self.live.append(Generation(request, self._receive(request), Workshop(self.pipeline)))

    def _receive(self, request):
        def receive(chunk):
            said = self.said[request.request_id]
            if chunk.tokens and not said:
                self.first_tokens.append(int(request.request_id))
            said += chunk.tokens
            if chunk.finish_reason:
                assert request.request_id not in self.ends
                self.ends[request.request_id] = chunk.finish_reason
            if chunk.finish_reason is FinishReason.LENGTH:
                assert len(said) == request.max_tokens
            assert said == continuation(request.input_ids, len(said))

        return receive

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data):
        generation = data.draw(st.sampled_from(self.live))
        free = self._free()
        held = generation.phase is Phase.IN_PIPELINE
        generation.end(FinishReason.CANCELLED)
        assert self._free() == free + held
        self.live.remove(generation)

    @rule()
    def step(self):
        for generation in self.live:
            if generation.phase is Phase.WAITING and not generation.enter():
                break
        before = {id(each): len(self.said[each.request.request_id]) for each in self.live}
        decoding = [each for each in self.scheduler.slots if each.state is State.DECODING]
        self.executor.calls.clear()
        self.pipeline.step()
        for generation in self.live:
            generation.advance()
            got = len(self.said[generation.request.request_id]) - before[id(generation)]
            assert got <= 1
        self._check_calls(decoding)
        self.live = [each for each in self.live if not each.ended]

    def _check_calls(self, decoding):
        prefills = [each for each in self.executor.calls if each.phase is Profile.PREFILL]
        decodes = [each for each in self.executor.calls if each.phase is Profile.DECODE]
        assert sum(len(each.tokens[0]) for each in prefills) <= self.chunk
        assert all(each.lengths[0] % self.chunk == 0 for each in prefills)
        assert len(decodes) == bool(decoding)
        for each in decodes:
            assert each.first == decoding[0].index
            assert each.first + len(each.tokens) - 1 == decoding[-1].index

    @invariant()
    def slots_are_held_by_live_requests_only(self):
        if hasattr(self, "live"):
            inside = sum(each.phase is Phase.IN_PIPELINE for each in self.live)
            assert len(self.scheduler.slots) - self._free() == inside
            assert self.pipeline.busy == bool(inside)
            # Prompts are run in order of arrival.
            assert self.first_tokens == sorted(self.first_tokens)

    def teardown(self):
        if hasattr(self, "live"):
            for _ in range(10_000):
                if not self.live:
                    break
                self.step()
            assert set(self.ends) == set(self.said)
            assert self._free() == len(self.scheduler.slots)
            assert self.pipeline.blocks_used == 0

    def _free(self):
        return sum(slot.state is State.FREE for slot in self.scheduler.slots)


TestSlots = Slots.TestCase


@given(
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    chunk=st.integers(1, 16),
)
def test_prompts_are_cut_where_they_would_be_alone(prompts, chunk):
    def cuts(sizes):
        scheduler, found = Scheduler(len(sizes), 64, chunk), {}
        for size in sizes:
            scheduler.admit([1] * size)
        while any(slot.state is State.PREFILLING for slot in scheduler.slots):
            for each in scheduler.next_step().chunks:
                found.setdefault(each.slot.index, []).append((each.start, len(each.tokens)))
        return found

    assert cuts(prompts) == {index: cuts([size])[0] for index, size in enumerate(prompts)}


def test_a_long_prompt_does_not_stop_who_decodes():
    scheduler = Scheduler(2, 64, 4)
    decoding = scheduler.admit([1])
    scheduler.next_step()
    scheduler.admit([1] * 16)
    for _ in range(4):
        scheduler.feed(decoding, 5)
        step = scheduler.next_step()
        assert [len(chunk.tokens) for chunk in step.chunks] == [4]
        assert step.rows.slots == [decoding]


def test_a_token_for_a_slot_that_waits_for_none_is_a_bug_that_shows():
    scheduler = Scheduler(1, 2, 2)
    slot = scheduler.admit([1, 2])
    with pytest.raises(ValueError, match="slot 0 with 0 tokens is PREFILLING"):
        scheduler.feed(slot, 3)
    scheduler.next_step()
    with pytest.raises(ValueError, match="slot 0 with 2 tokens is CHOOSING"):
        scheduler.feed(slot, 3)
    with pytest.raises(ValueError, match="3 tokens for a slot of 2"):
        Scheduler(1, 2, 2).admit([1, 2, 3])
